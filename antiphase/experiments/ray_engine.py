"""The engine of a cluster: every job is a Ray task.

Ray places the tasks, starts their workers and repeats the task of a lost one. What a job has done
is in its folder, which all nodes share; a repeated task continues from its last checkpoint.
"""

import atexit
import logging
import queue
import re
import socket
import time
import warnings
from pathlib import Path
from typing import Any

from antiphase.experiments.engine import Ended, Job, Resources, attempt
from antiphase.experiments.leases import LEASES, holders, patience

SECONDS_WITHOUT_HEAD = 20  # after which the head counts as lost; Ray's own limit aborts the process
SECONDS_TO_CONNECT = 5  # Ray itself waits for minutes
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class ClusterLostError(OSError):
    """The head node of the cluster does not answer any more."""


class RayEngine:
    """A Ray cluster, with one task per job.

    Args:
        address: of the cluster, or "auto" for the one that runs on this machine; None starts Ray on
            this machine if it does not run yet.
        retries: how often Ray performs a job again whose worker or node was lost.

    Raises:
        ValueError: Ray is not installed, or there is no cluster at this address.
    """

    def __init__(self, address: str | None = None, retries: int = 3) -> None:
        self._ray = _connected(address)
        self.retries = retries
        self._task = self._ray.remote(attempt)
        self._submitted: dict[Any, tuple[Job, Path]] = {}  # by the reference of its result
        self._ended: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._reserved: dict[Resources, dict[str, float]] = {}
        self._head = self._ray.get_runtime_context().gcs_address
        self._next_look = 0.0
        self._silent_since: float | None = None
        self._lost = False

    @property
    def workers(self) -> int:
        """Return the number of cores of the cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, job: Job, root: Path) -> None:
        """Take a job; Ray performs it where its resources are free."""
        root = root.resolve()  # workers have other working folders
        needs = job.resources
        if needs not in self._reserved:
            self._reserved[needs] = self._reservation(job)
        task = self._task.options(max_retries=self.retries, **self._reserved[needs])
        reference = task.remote(job, root)
        self._submitted[reference] = job, root
        reference.future().add_done_callback(lambda done: self._ended.put((reference, done)))

    def progress(self) -> list[Job]:
        """Return the jobs that are running: those that have a lease."""
        jobs = {job.key: job for job, _ in self._submitted.values()}
        folders = {root for _, root in self._submitted.values()}
        held = {key for root in folders for key in holders(root / LEASES)}
        return [jobs[key] for key in held if key in jobs]

    def result(self, timeout: float) -> Ended | None:
        """Return the next job that has ended; None if none has within so many seconds.

        Raises:
            ClusterLostError: the head node does not answer any more.
        """
        self._check_head()
        try:
            reference, done = self._ended.get(timeout=timeout)
        except queue.Empty:
            return None
        if reference not in self._submitted:  # of a call that was cancelled
            return None
        job, root = self._submitted.pop(reference)
        if error := done.exception():
            return job, _why(error, self.retries)
        return job, done.result() or _not_visible(job, root)

    def cancel(self) -> None:
        """End all tasks that have not ended; the cluster stays."""
        references = list(self._submitted)
        self._submitted.clear()
        if self._lost:  # its workers end by themselves, and the calls below would wait for it
            return
        for reference in references:
            self._ray.cancel(reference, force=True)  # safe: checkpoints are complete at any moment

    def _check_head(self) -> None:
        """Raise if the head node has not answered for too long; look at most once a second."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + 1
        try:
            _connect(self._head, 2)
            self._silent_since = None
        except OSError as error:
            self._silent_since = self._silent_since or now
            if now - self._silent_since < SECONDS_WITHOUT_HEAD:
                return
            self._lost = True
            atexit.unregister(self._ray.shutdown)  # it would wait for the head
            raise ClusterLostError(
                f"the head of the Ray cluster, {self._head}, does not answer any more ({error}); "
                "start a head and give the same command again: it continues from the checkpoints"
            ) from error

    def _reservation(self, job: Job) -> dict[str, float]:
        """Return what Ray reserves for a job; no GPU where the cluster has none."""
        wanted = {"CPU": job.resources.cpus}
        if self._ray.cluster_resources().get("GPU", 0):
            wanted["GPU"] = job.resources.gpus
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(k, 0) >= v for k, v in wanted.items()) for node in nodes):
            needs = " and ".join(f"{amount:g} {kind}" for kind, amount in wanted.items())
            raise ValueError(
                f"{job.title}: needs {needs}, and none of the {len(nodes)} nodes has so much; set "
                "threads in the recipe, or add a node"
            )
        return {f"num_{kind.lower()}s": amount for kind, amount in wanted.items()}


def _connected(address: str | None) -> Any:
    """Return the module `ray`, connected to a cluster."""
    try:
        import ray
    except ImportError as error:
        raise ValueError("--engine ray needs Ray; pip install 'antiphase[cluster]'") from error
    if not ray.is_initialized():
        try:
            if address is not None and ":" in address:  # others are found or started by Ray
                _connect(address.removeprefix("ray://"), SECONDS_TO_CONNECT)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of Ray, about its own future
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"--address: got {address!r}, where no Ray cluster answers ({error}); start one "
                "with `ray start --head`, or leave out --address to start Ray on this machine"
            ) from error
    return ray


def _connect(address: str, seconds: float) -> None:
    """Raise OSError unless somebody accepts a connection at HOST:PORT within some seconds."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()


def _why(error: BaseException, retries: int) -> str:
    """Return why Ray has not performed a job; errors of the job itself are results of `attempt`."""
    from ray import exceptions

    lost = (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.LocalRayletDiedError,
        exceptions.OutOfMemoryError,
        exceptions.RayActorError,
    )
    text = _COLOURS.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, lost):
        return (
            f"its worker was lost more than {retries} times ({lines[0]}); run the same command "
            "again to continue from its last checkpoint"
        )
    return (
        f"Ray could not perform it: {lines[-1]}; every node needs the same version of this package "
        "and of what it imports"
    )


def _not_visible(job: Job, root: Path) -> str | None:
    """Return an error if a finished job's result cannot be seen from here; wait for slow caches."""
    deadline = time.monotonic() + patience()
    while job.done(root) < 1:
        if time.monotonic() > deadline:
            return (
                f"it was performed, but {job.folder(root)} has no result; the folder must be "
                "shared by all nodes, under the same path"
            )
        time.sleep(0.2)
    return None
