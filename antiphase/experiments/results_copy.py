"""Finished results, also at a URL: object storage, another file system (whatever fsspec knows)."""

from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.experiments.engine import Ended, Engine, Job

LAST = "model/config.json"  # its presence says that a run is complete, as in the run's folder
LEFT_OUT = ("checkpoints", "tensorboard", ".lock")


class ResultsCopy:
    """Copies of finished runs and of a study's results.

    Args:
        url: where to, such as `s3://bucket/study` or `file:///mnt/results`.
        console: for what could not be copied.

    Raises:
        ValueError: the URL cannot be used; says why.
    """

    def __init__(self, url: str, console: Console) -> None:
        from fsspec.core import url_to_fs

        if "://" not in url:  # fsspec would take it for a folder of this machine
            raise ValueError(
                f"--results-url: got {url!r}, expected SCHEME://PLACE such as s3://bucket/study, "
                "or file:///mnt/results for a folder"
            )
        try:
            self._files, self._base = url_to_fs(url)
        except (ImportError, OSError, ValueError) as error:
            raise ValueError(
                f"--results-url: got {url!r}, which cannot be used ({error})"
            ) from error
        self.url, self.console = url.rstrip("/"), console

    def copy_run(self, folder: Path) -> bool:
        """Copy a finished run without its checkpoints, unless it is there; say if it fails."""
        target = f"{self._base}/trained/{folder.name}"
        paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
        files = [name for name in paths if name.split("/")[0] not in LEFT_OUT]
        files = [name for name in files if (folder / name).is_file() and name != LAST]
        return self._tried(folder, lambda: self._copy_all(folder, [*files, LAST], target))

    def copy_study(self, folder: Path) -> bool:
        """Copy what is missing: every finished run, then the results and reports of the folder."""
        runs = sorted(path.parents[1] for path in folder.glob(f"trained/*/{LAST}"))
        copied = [self.copy_run(run) for run in runs]
        top = [path.name for path in folder.iterdir() if path.is_file()]
        below = [
            path.relative_to(folder).as_posix()
            for kind in ("measured", "figures")
            for path in folder.glob(f"{kind}/*")
        ]
        put = self._tried(folder, lambda: self._put(folder, [*sorted(below), *top], self._base))
        return put and all(copied)

    def _copy_all(self, folder: Path, names: list[str], target: str) -> None:
        if not self._files.exists(f"{target}/{LAST}"):
            self._put(folder, names, target)

    def _put(self, folder: Path, names: list[str], target: str) -> None:
        for name in names:
            remote = f"{target}/{name}"
            self._files.makedirs(remote.rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(folder / name), remote)

    def _tried(self, folder: Path, copy: Any) -> bool:
        """Copy; a URL that fails does not end a study, whose results are in its folder anyway."""
        try:
            copy()
        except Exception as error:
            self.console.print(
                f"{folder}: could not be copied to {self.url} ({type(error).__name__}: {error}); "
                "it is kept, and the same command copies it again",
                highlight=False,
                soft_wrap=True,
            )
            return False
        return True


class CopyingEngine:
    """An engine that copies the result of every job when it ends.

    Args:
        engine: that performs the jobs.
        copy: of their results.
    """

    def __init__(self, engine: Engine, copy: ResultsCopy) -> None:
        self.engine, self.copy = engine, copy
        self._roots: dict[str, Path] = {}

    @property
    def workers(self) -> int:
        """Return how many jobs of one core run at once."""
        return self.engine.workers

    def submit(self, job: Job, root: Path) -> None:
        """Take a job."""
        self._roots[job.key] = root
        self.engine.submit(job, root)

    def progress(self) -> list[Job]:
        """Return the jobs that are running."""
        return self.engine.progress()

    def result(self, timeout: float) -> Ended | None:
        """Return the next job that has ended, once its result is copied."""
        ended = self.engine.result(timeout)
        if ended is not None and ended[1] is None:
            self.copy.copy_run(ended[0].folder(self._roots[ended[0].key]))
        return ended

    def cancel(self) -> None:
        """End all jobs that have not ended."""
        self.engine.cancel()
