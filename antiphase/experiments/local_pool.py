"""The engine of one machine: a pool of processes."""

import multiprocessing
import os
import queue
import threading
import time
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from antiphase.experiments.engine import Ended, Job, attempt, cores

SECONDS_TO_SAVE = 60  # that a worker has to end by itself


class _Submitted(NamedTuple):
    job: Job
    root: Path
    pool: ProcessPoolExecutor


class LocalEngine:
    """All cores of this machine, one job per core.

    Args:
        workers: number of processes; default: one per core.
        retries: how often a job is performed again whose process was killed.
    """

    def __init__(self, workers: int | None = None, retries: int = 3) -> None:
        self.workers = workers or cores()
        self.retries = retries
        self._pool: ProcessPoolExecutor | None = None
        self._submitted: dict[Future[str | None], _Submitted] = {}
        self._ended: queue.SimpleQueue[Future[str | None]] = queue.SimpleQueue()
        self._killed: Counter[str] = Counter()

    def submit(self, job: Job, root: Path) -> None:
        """Take a job; it is performed when there is room for it."""
        self._pool = pool = self._pool or self._start()
        try:
            future = pool.submit(attempt, job, root)
        except BrokenProcessPool:  # and `result` has not seen it yet
            self._pool = pool = self._start()
            future = pool.submit(attempt, job, root)
        self._submitted[future] = _Submitted(job, root, pool)
        future.add_done_callback(self._ended.put)

    def progress(self) -> list[Job]:
        """Return the jobs that are running."""
        running = (given.job for future, given in self._submitted.items() if future.running())
        return list(islice(running, self.workers))

    def result(self, timeout: float) -> Ended | None:
        """Return the next job that has ended; None if none has within so many seconds."""
        try:
            future = self._ended.get(timeout=timeout)
        except queue.Empty:
            return None
        if future not in self._submitted:  # of a call that was cancelled
            return None
        job, root, pool = self._submitted[future]
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            return self._again(future, job, root, pool)
        del self._submitted[future]
        return job, str(error) if error else future.result()

    def cancel(self) -> None:
        """End all jobs that have not ended, and all processes of the pool."""
        pool, self._pool = self._pool, None
        self._submitted.clear()
        self._killed.clear()
        if pool is None:
            return
        processes = list(pool._processes.values())
        pool.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + SECONDS_TO_SAVE  # after Ctrl-C they write a checkpoint
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():  # it hangs
                process.kill()
                process.join()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, mp_context=context, initializer=_end_with_parent)

    def _again(
        self, future: Future[str | None], job: Job, root: Path, pool: ProcessPoolExecutor
    ) -> Ended | None:
        """Submit a job again whose pool has lost a process; give up after some times.

        A pool does not say which process was killed, so it counts for all jobs that were running:
        the first ones, since jobs start in the order of their submission.
        """
        if pool is self._pool:
            mine = (given.job for given in self._submitted.values() if given.pool is pool)
            self._killed.update(running.key for running in islice(mine, self.workers))
            self._pool = None
            for process in pool._processes.values():  # SIGTERM alone would let them save and wait
                process.kill()
        del self._submitted[future]
        if self._killed[job.key] > self.retries:
            return job, (
                f"its process was killed {self._killed[job.key]} times (out of memory?); run the "
                "same command again to continue from its last checkpoint"
            )
        self.submit(job, root)
        return None


def _end_with_parent() -> None:
    """Let a worker exit when its parent process is gone, even after a SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_after_parent() -> None:
        parent.join()
        os._exit(1)  # safe: checkpoints are complete at any moment

    threading.Thread(target=exit_after_parent, daemon=True).start()
