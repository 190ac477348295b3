"""One process at a time works on a key, whatever happens to it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from antiphase.experiments import leases
from antiphase.experiments.leases import SECONDS, StallWatch, holders, lease

HOLD = (
    "import sys, time\n"
    "from pathlib import Path\n"
    "from antiphase.experiments.leases import lease\n"
    "with lease(Path(sys.argv[1]), 'run'):\n"
    "    print('held', flush=True)\n"
    "    time.sleep(600)\n"
)


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch):
    monkeypatch.setenv(SECONDS, "3")


@pytest.fixture
def other(tmp_path):
    """A process that holds the lease `run`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_lease_is_waited_for(tmp_path):
    order = []

    def second():
        with lease(tmp_path, "run"):
            order.append("second")

    with lease(tmp_path, "run") as stalled:
        assert not stalled
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(4.5)  # longer than the patience, but the holder is alive
        order.append("first")
    waiting.join(30)
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_the_lease_of_a_killed_process_is_taken_at_once(tmp_path, other, monkeypatch):
    assert not holders(tmp_path)["run"].gone
    other.kill()
    other.wait()
    assert holders(tmp_path)["run"].gone
    monkeypatch.setenv(SECONDS, "1000")
    with lease(tmp_path, "run") as stalled:
        assert not stalled
        assert not holders(tmp_path)["run"].gone


def test_a_process_that_hangs_loses_its_lease_and_ends_when_it_wakes(tmp_path, other):
    watch = StallWatch(tmp_path)
    assert watch.stalled() == {}
    other.send_signal(signal.SIGSTOP)
    with lease(tmp_path, "run") as stalled:
        assert stalled
        assert watch.stalled() == {}, "it has a new holder"
        other.send_signal(signal.SIGCONT)
        assert other.wait(60) == 1
        said = other.stderr.read()
        assert "took over" in said
        assert f"process {os.getpid()}" in said
    assert holders(tmp_path) == {}


def test_a_process_that_wakes_after_everything_is_done_ends_too(tmp_path, other):
    other.send_signal(signal.SIGSTOP)
    with lease(tmp_path, "run"):
        pass
    with lease(tmp_path, "run"):  # a lease of the first generation again, with another token
        other.send_signal(signal.SIGCONT)
        assert other.wait(60) == 1
        assert len(holders(tmp_path)) == 1


def test_a_stall_is_reported_once(tmp_path, other):
    watch = StallWatch(tmp_path)
    watch.stalled()
    other.send_signal(signal.SIGSTOP)
    found, deadline = {}, time.monotonic() + 60
    while not found:
        assert time.monotonic() < deadline
        time.sleep(0.2)
        found = watch.stalled()
    assert f"process {other.pid}" in str(found["run"])
    assert watch.stalled() == {}


def test_a_healthy_holder_with_more_patience_is_not_reported(tmp_path, other, monkeypatch):
    """Its heartbeats are rarer than the patience of those who look."""
    monkeypatch.setenv(SECONDS, "0.2")
    watch = StallWatch(tmp_path)
    assert holders(tmp_path)["run"].patience == 3
    first = holders(tmp_path)["run"].content
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        assert watch.stalled() == {}
        time.sleep(0.05)
    assert holders(tmp_path)["run"].content != first, "it gives signs of life"
    monkeypatch.setenv(SECONDS, "7")
    assert holders(tmp_path)["run"].patience == 7


def test_the_holder_on_another_machine_is_not_taken_for_gone(tmp_path):
    fields = json.loads(leases._content(0, "token", 3)[12:]) | {
        "machine": "elsewhere",
        "process": 1,
    }
    (tmp_path / "run.1").write_bytes(b"0" * 12 + json.dumps(fields).encode())
    assert not holders(tmp_path)["run"].gone
    (tmp_path / "run.1").write_bytes(b"")  # just created
    assert not holders(tmp_path)["run"].gone
    assert str(holders(tmp_path)["run"]) == "another process"


def test_the_patience_is_a_number(monkeypatch):
    monkeypatch.setenv(SECONDS, "soon")
    with pytest.raises(ValueError, match="got 'soon', expected a number of seconds above 0"):
        leases.patience()
