"""Ray nodes on this machine, each a `ray start` that can be killed like a machine."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
LIMIT = int(os.environ.get("ANTIPHASE_TEST_SECONDS", "300"))  # for a node to start
PORTS = ("dashboard-agent-grpc", "dashboard-agent-listen", "metrics-export", "runtime-env-agent")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def descendants(process: int) -> list[int]:
    """Return all processes that a process has started, and those that they have started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


class Cluster:
    """A head and further nodes with one CPU each; `with` ends whatever still runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.nodes: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start_head(self) -> "subprocess.Popen[bytes]":
        return self._start("--head", "--port", str(self.port), "--include-dashboard", "false")

    def start_node(self) -> "subprocess.Popen[bytes]":
        return self._start("--address", self.address)

    def kill(self, node: "subprocess.Popen[bytes]") -> None:
        """Kill a node and all that it has started, as if its machine lost power."""
        for process in (node.pid, *descendants(node.pid)):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        node.wait()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *error: object) -> None:
        for node in self.nodes:
            if node.poll() is None:
                self.kill(node)

    def _start(self, *options: str) -> "subprocess.Popen[bytes]":
        log = (self.folder / f"node-{len(self.nodes)}.txt").open("wb")
        ports = [word for name in PORTS for word in (f"--{name}-port", str(free_port()))]
        node = subprocess.Popen(
            [
                *(sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start"),
                *options,
                *ports,
                *("--min-worker-port", "0", "--max-worker-port", "0"),  # free ones: one machine
                *("--node-ip-address", "127.0.0.1", "--num-cpus", "1", "--block"),
                *("--object-store-memory", str(80_000_000), "--disable-usage-stats"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(),
        )
        self.nodes.append(node)
        deadline = time.monotonic() + LIMIT
        while b"Ray runtime started" not in (self.folder / log.name).read_bytes():
            assert node.poll() is None, (self.folder / log.name).read_text()
            assert time.monotonic() < deadline, (self.folder / log.name).read_text()
            time.sleep(0.2)
        return node


def environment() -> dict[str, str]:
    """Return the environment of nodes and studies; a busy machine needs time to start."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": str(LIMIT),
        "RAY_NUM_REDIS_GET_RETRIES": str(LIMIT),
    }
