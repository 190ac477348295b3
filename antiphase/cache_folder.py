"""The folder in which built kernels, converted models and packed corpora are kept between runs.

A library in it is loaded and executed. So nothing in it is trusted that another user owns or may
write: `distrust` says so, with the reason. A checksum beside a file would not help, since whoever
replaces the one can replace the other.
"""

import os
import stat
import tempfile
from pathlib import Path

VARIABLE = "ANTIPHASE_CACHE"


def cache_folder() -> Path:
    """Return the cache folder, which may not exist yet.

    Returns:
        `ANTIPHASE_CACHE`; else `antiphase` in the user's cache folder; else, where there is no
        home folder or nothing can be created in it, a folder of this user in the temporary folder.

    Raises:
        PermissionError: there is such a temporary folder, but another user owns or may write it.
    """
    if given := os.environ.get(VARIABLE):
        return Path(given).absolute()
    folder = _user_cache()
    if folder is not None and _exists_or_can(folder / "antiphase"):
        return folder / "antiphase"
    user = os.geteuid() if hasattr(os, "geteuid") else "user"
    fallback = Path(tempfile.gettempdir()).absolute() / f"antiphase-{user}"
    if (reason := distrust(fallback)) is not None:  # anyone can create folders there
        raise PermissionError(reason)
    return fallback


def create_private(folder: Path) -> None:
    """Create a folder, and its missing parents, that only this user may read and write."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        create_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a file at once, so that only this user may read and write it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def distrust(path: Path) -> str | None:
    """Say why a file or folder of the cache must not be used; None if it may, or does not exist.

    It must belong to this user or to root, also as a symbolic link, and nobody else may write it.
    """
    if not hasattr(os, "geteuid"):
        return None
    try:
        found = [path.lstat(), path.stat()]  # of a symbolic link: itself, then what it points to
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{path} cannot be examined ({error.strerror}); {_OTHERWISE}"
    for status in found:
        if status.st_uid not in (os.geteuid(), 0):
            return (
                f"{path} belongs to {_user_name(status.st_uid)}, and this process runs as "
                f"{_user_name(os.geteuid())}; {_OTHERWISE}"
            )
    mode = stat.S_IMODE(found[-1].st_mode)
    if mode & 0o022:
        return (
            f"{path} can be written by other users (mode {mode:o}); {_OTHERWISE}, or, if you trust "
            "what is in it, take their permission away (chmod -R go-w)"
        )
    return None


_OTHERWISE = f"delete it, or set {VARIABLE} to a folder of your own"


def _user_cache() -> Path | None:
    """Return the user's cache folder; None if there is no home folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # relative ones are invalid, says its specification
        return Path(given)
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and no entry for this user
        return None
    return home / ".cache" if home.is_absolute() else None


def _exists_or_can(folder: Path) -> bool:
    """Tell whether a folder exists or can be created."""
    try:
        existing = next(p for p in (folder, *folder.parents) if p.exists())
    except OSError:  # a parent that cannot be entered
        return False
    return existing == folder or os.access(existing, os.W_OK | os.X_OK)


def _user_name(uid: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return f"user {uid}"
