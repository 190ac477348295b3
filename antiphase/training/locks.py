"""A lock on a folder that ends with the process that holds it, however that ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a file lock that one process at a time can have.

    Args:
        path: of the lock file, which is created and stays.
        wait: until another process releases the lock.

    Raises:
        ValueError: another process holds the lock, and `wait` is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{path.parent}: another process is working in this folder; wait until it ends, or "
                "use another folder"
            ) from error
        yield
