"""Load on an explorer: many clients on loopback, their answers checked, memory before and after.

    python -m tests.explorer.load --clients 50 --seconds 120
    python -m tests.explorer.load --clients 2 --seconds 3600 --pause 2    # a soak

Every client draws states at random (model, example, lam, edits, head), waits for the answer and
pauses. The first part is warm-up, in which the server's cache fills: at least so many seconds, and
as long as it takes for `WARM_REQUESTS`.
"""

import argparse
import http.client
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

SHOW_EVERY = 300  # seconds
WARM_REQUESTS = 2000  # after so many, cache and heap have their size


@dataclass
class Outcome:
    """What the clients saw.

    Attributes:
        statuses: how often each status was answered; "error" where no answer came.
        seconds: that answers took.
        warm: resident memory of the server after warm-up, in MB.
        end: at the end.
        largest: the largest after warm-up.
    """

    statuses: Counter = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    warm: float = 0.0
    end: float = 0.0
    largest: float = 0.0

    def __str__(self) -> str:
        taken = sorted(self.seconds) or [0.0]
        middle, late = taken[len(taken) // 2], taken[int(0.99 * (len(taken) - 1))]
        return (
            f"{sum(self.statuses.values())} requests, {dict(self.statuses)}; median "
            f"{middle:.3f} s, 99% {late:.3f} s; memory {self.warm:.0f} MB after warm-up, "
            f"{self.end:.0f} MB at the end, at most {self.largest:.0f} MB"
        )


def memory(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def random_state(rng: random.Random) -> dict[str, str]:
    """Return a state such as a page would ask for."""
    name = rng.choice(["diff_v1", "diff_v2", "standard"])
    state = {"a": name, "example": str(rng.randrange(40)), "length": str(rng.choice([32, 64, 128]))}
    if name != "standard":
        state["a.lam"] = f"{rng.randrange(41) / 20:.2f}"
        if rng.random() < 0.3:
            state["a.edits"] = rng.choice(["0.1:off", "1.2:rank:3", "1.0:head:3"])
    state["a.head"] = f"{rng.randrange(2)}.{rng.randrange(4)}"
    if rng.random() < 0.2:
        state["b"] = "standard"
    return state


def client(
    address: str, seed: int, pause: float, stop: threading.Event, outcome: Outcome, most: int
) -> None:
    """Ask for views until told to stop, at most so often."""
    rng, headers = random.Random(seed), {"content-type": "application/json", "x-session": str(seed)}
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
    for _ in range(most):
        if stop.is_set():
            break
        begin = time.monotonic()
        try:
            body = json.dumps(random_state(rng))
            connection.request("POST", "/api/view", body, headers)
            response = connection.getresponse()
            content = json.loads(response.read())
            status = str(response.status)
            if response.status == 200 and not content[0]["tokens"]:
                status = "empty"
        except OSError as error:
            connection.close()
            status = f"error: {type(error).__name__}"
        outcome.statuses[status] += 1
        outcome.seconds.append(time.monotonic() - begin)
        stop.wait(pause * rng.uniform(0.5, 1.5))
    connection.close()


def run(clients: int, seconds: float, warm_up: float, pause: float, most: int = 10**6) -> Outcome:
    """Start a server, load it, and return what the clients saw after warm-up."""
    command = [sys.executable, "-m", "antiphase", "explore", "--no-browser", "--port", "0", "-q"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())[0]
        stop, outcome = threading.Event(), Outcome()
        arguments = [(address, i, pause, stop, outcome, most) for i in range(clients)]
        threads = [threading.Thread(target=client, args=given) for given in arguments]
        for thread in threads:
            thread.start()
        warm = time.monotonic() + warm_up
        while time.monotonic() < warm or sum(outcome.statuses.values()) < WARM_REQUESTS:
            time.sleep(1)
        early = dict(outcome.statuses)
        outcome.warm, end = memory(server.pid), time.monotonic() + seconds
        outcome.statuses.clear()
        outcome.seconds.clear()
        for status, count in early.items():
            if status != "200":
                outcome.statuses[status] += count  # nothing may fail in warm-up either
        shown = time.monotonic()
        while time.monotonic() < end:
            time.sleep(1)
            outcome.end = memory(server.pid)
            outcome.largest = max(outcome.largest, outcome.end)
            if time.monotonic() - shown > SHOW_EVERY:
                shown = time.monotonic()
                print(outcome, flush=True)
        stop.set()
        for thread in threads:
            thread.join()
        outcome.end = memory(server.pid)
        return outcome
    finally:
        server.send_signal(2)
        server.wait(20)


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--warm-up", type=float, default=60)
    parser.add_argument("--pause", type=float, default=1.0)
    given = parser.parse_args()
    print(run(given.clients, given.seconds, given.warm_up, given.pause))


if __name__ == "__main__":
    main()
