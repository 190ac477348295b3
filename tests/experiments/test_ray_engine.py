"""What the Ray engine says without a cluster: no head answers, or a job could not be performed."""

import socket
import time

import pytest

from antiphase.experiments import ray_engine
from antiphase.experiments.ray_engine import RayEngine, _why

pytest.importorskip("ray", reason="Ray is not installed: pip install 'antiphase[cluster]'")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_listens_is_named_at_once(scheme):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, but it does not listen
        address = f"{scheme}127.0.0.1:{free.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(ValueError, match=f"--address: got '{address}', where no Ray cluster"):
            RayEngine(address)
    assert time.monotonic() - start < 2 * ray_engine.SECONDS_TO_CONNECT


def test_an_address_without_a_number_as_port_is_named():
    with pytest.raises(ValueError, match="--address: got 'host:port', where no Ray cluster"):
        RayEngine("host:port")


def test_a_lost_worker_is_told_from_a_job_that_cannot_start():
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayTaskError, WorkerCrashedError

    for error in (WorkerCrashedError(), NodeDiedError("node 7 is gone"), OutOfMemoryError("full")):
        assert "its worker was lost more than 3 times (" in _why(error, 3)
        assert "run the same command again" in _why(error, 3)
    traceback = (
        "\x1b[36mray::attempt()\x1b[39m (pid=1, ip=127.0.0.1)\n"
        "RuntimeError: The remote function failed to import on the worker.\n\n"
        "               ^^^^^^^^^^^^^^\n"
        "\x1b[31mModuleNotFoundError: No module named 'antiphase'\x1b[39m\n"
    )
    error = RayTaskError("attempt", traceback, RuntimeError("import")).as_instanceof_cause()
    said = _why(error, 3)
    assert said.startswith("Ray could not perform it: ModuleNotFoundError: No module named 'antip")
    assert "lost" not in said
    assert "\x1b" not in said
