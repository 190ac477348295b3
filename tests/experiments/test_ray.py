"""Studies on Ray: the numbers of the local pool, and what happens when nodes and workers die.

Every node is a `ray start` on this machine. Starting them takes seconds of CPU time, so these
tests are slow ones.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from antiphase.experiments.leases import LEASES, holders
from tests.experiments.ray_nodes import LIMIT, Cluster, descendants, environment
from tests.experiments.ray_study import stubs
from tests.experiments.stub_jobs import StubJob, assert_each_step_once

pytest.importorskip("ray", reason="Ray is not installed: pip install 'antiphase[cluster]'")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as cluster:
        yield cluster


def study(*arguments: object) -> "subprocess.Popen[str]":
    """Start a study in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.experiments.ray_study", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )


def ended(process: "subprocess.Popen[str]") -> str:
    """Wait for a study that succeeds; return what it printed."""
    printed, _ = process.communicate(timeout=4 * LIMIT)
    assert process.returncode == 0, printed
    return printed


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def finished(folder: Path) -> dict[str, int]:
    """Return when each model was written."""
    models = folder.glob("trained/*/model/model.safetensors")
    return {path.parts[-3]: path.stat().st_mtime_ns for path in models}


def assert_same_study(one: Path, other: Path) -> None:
    """Every number of the report and every weight, bit by bit."""
    results = [json.loads((folder / "results.json").read_text()) for folder in (one, other)]
    assert results[0] == results[1]
    assert finished(one).keys() == finished(other).keys()
    for key in finished(one):
        path = Path("trained", key, "model", "model.safetensors")
        assert (one / path).read_bytes() == (other / path).read_bytes(), key


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The study on the local pool."""
    folder = tmp_path_factory.mktemp("local")
    ended(study("lab", folder))
    return folder


def test_two_nodes_give_the_numbers_of_the_local_pool(cluster, local, tmp_path):
    cluster.start_head()
    cluster.start_node()
    printed = ended(study("lab", tmp_path / "ray", cluster.address))
    assert "on 2 cores" in printed
    assert_same_study(tmp_path / "ray", local)


def test_a_node_that_is_killed_changes_nothing(cluster, local, tmp_path):
    cluster.start_head()
    second = cluster.start_node()
    folder = tmp_path / "ray"
    running = study("lab", folder, cluster.address)

    def works_there() -> bool:
        """Return whether a worker of the second node is at work, after the first finished run."""
        at_work = {holder.process for holder in holders(folder / "trained" / LEASES).values()}
        return bool(finished(folder)) and bool(at_work & {*descendants(second.pid)})

    wait_until(works_there, running)
    before = finished(folder)
    cluster.kill(second)
    ended(running)
    assert {key: finished(folder)[key] for key in before} == before
    assert_same_study(folder, local)


def test_a_worker_that_is_killed_is_replaced(cluster, tmp_path):
    """Jobs in this process's own driver: one worker is killed once, one again and again."""
    import ray

    from antiphase.experiments.ray_engine import RayEngine
    from antiphase.experiments.train_all import train_all

    cluster.start_head()
    jobs = [StubJob("0"), StubJob("a", fault="killed"), StubJob("bad", fault="killed always")]
    said = Console(file=io.StringIO(), width=300)
    try:
        engine = RayEngine(cluster.address, retries=1)
        assert engine.workers == 1
        errors = train_all(jobs, tmp_path / "trained", said, engine)
        with pytest.raises(ValueError, match="needs 2 CPU, and none of the 1 nodes has so much"):
            engine.submit(StubJob("wide", cpus=2), tmp_path)
    finally:
        ray.shutdown()
    assert list(errors) == ["bad"]
    assert "its worker was lost more than 1 times" in errors["bad"]
    assert "run the same command again" in errors["bad"]
    assert_each_step_once(jobs[:2], tmp_path / "trained")


def test_the_same_command_continues_on_a_new_head(cluster, tmp_path):
    """The head is killed; the study says so and ends; on a new head it repeats no step."""
    head = cluster.start_head()
    root = tmp_path / "trained"
    running = study("stubs", root, cluster.address)
    wait_until(lambda: sum(job.done(root) == 1 for job in stubs()) >= 2, running)
    cluster.kill(head)
    printed, _ = running.communicate(timeout=LIMIT)
    assert running.returncode != 0
    assert "the same command" in printed
    assert any(job.done(root) < 1 for job in stubs())
    cluster.start_head()
    ended(study("stubs", root, cluster.address))
    assert_each_step_once(stubs(), root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_full_folder(tmp_path):
    """Real runs on a file system that is too small for them; then it grows."""
    from antiphase.experiments.arms import STANDARD, V1
    from antiphase.experiments.local_pool import LocalEngine
    from antiphase.experiments.train_all import train_all
    from tests.experiments.small import small_run

    root = tmp_path / "small"
    root.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(root)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    runs = [small_run(arm) for arm in (STANDARD, V1)]
    said = Console(file=io.StringIO(), width=500)
    try:
        errors = train_all(runs, root, said, LocalEngine(1))
        assert errors.keys() == {run.key for run in runs}
        assert "free" in errors[runs[0].key]
        subprocess.run(["mount", "-o", "remount,size=100m", str(root)], check=True)
        assert train_all(runs, root, said, LocalEngine(1)) == {}
        shutil.copytree(root, tmp_path / "kept")
    finally:
        subprocess.run(["umount", str(root)], check=True)
    for run in runs:
        run.perform(tmp_path / "reference")
        path = Path(run.key, "model", "model.safetensors")
        kept, reference = (tmp_path / name / path for name in ("kept", "reference"))
        assert kept.read_bytes() == reference.read_bytes()
