"""Leases: which process works on what, in a folder that several machines share.

A lock of the operating system does not reach other machines on every file system, and a machine
that hangs never gives it back. A lease needs no locks and no common clock:

- `KEY.N` is a file that one process alone can create (O_EXCL); the highest N holds the lease.
- The holder rewrites it several times per `patience` (a heartbeat), which stands in the file.
- Whoever has seen no heartbeat for `patience` seconds of its own clock (the holder's or its own,
  whichever is longer) takes over by creating `KEY.N+1`. From a holder whose process is gone on the
  same machine, at once.
- A holder that wakes up and finds that its lease was taken ends its process. Checkpoints are
  complete at any moment and runs are deterministic, so nothing is lost.
"""

import functools
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEASES = "leases"
SECONDS = "ANTIPHASE_LEASE_SECONDS"
_BEATS = 6  # per patience
_COUNT = 12  # digits of the number of heartbeats, at the beginning of the file


def patience() -> float:
    """Return the seconds without a heartbeat that this process asks for: of holders and others."""
    given = os.environ.get(SECONDS, "60")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"{SECONDS}: got {given!r}, expected a number of seconds above 0")
    return seconds


@dataclass(frozen=True)
class Holder:
    """The process that holds a lease, as its file names it.

    Attributes:
        path: of the lease's file.
        content: of the file, which changes with every heartbeat.
    """

    path: Path
    content: bytes

    @functools.cached_property
    def _fields(self) -> dict[str, Any]:
        try:
            found = json.loads(self.content[_COUNT:])
        except ValueError:  # just created
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def token(self) -> str | None:
        """Return what tells this lease from all others."""
        return self._fields.get("token")

    @property
    def process(self) -> int | None:
        """Return the id of its process, on its own machine."""
        return self._fields.get("process")

    @property
    def patience(self) -> float:
        """Return after how many seconds without a heartbeat its lease can be taken over.

        Processes of one study may have different environments. Its heartbeats follow its own.
        """
        return max(patience(), float(self._fields.get("patience", 0)))

    @property
    def gone(self) -> bool:
        """Return whether its process is known to have ended: on this machine, and not alive."""
        fields = self._fields
        if not fields or not fields["machine"] or fields["machine"] != _machine():
            return False
        return _start_time(fields["process"]) != fields["started"]

    def __str__(self) -> str:
        fields = self._fields
        return f"{fields['host']}, process {fields['process']}" if fields else "another process"


@contextmanager
def lease(folder: Path, key: str) -> Iterator[bool]:
    """Hold the lease of a key; wait while another process holds it.

    Args:
        folder: of the leases, shared by all machines.
        key: what is worked on.

    Yields:
        Whether it was taken from a holder that may still be alive, but gave no sign of life.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seconds = patience()
    path, token, stalled = _acquire(folder, key, seconds)
    released = threading.Event()
    beats = threading.Thread(target=_beat, args=(path, token, seconds, released), daemon=True)
    beats.start()
    try:
        yield stalled
    finally:
        released.set()
        beats.join()
        _release(path, token)


def holders(folder: Path) -> dict[str, Holder]:
    """Return the holder of every lease in a folder, by key."""
    generations: dict[str, int] = {}
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            key, _, number = entry.name.rpartition(".")
            if number.isdigit():
                generations[key] = max(generations.get(key, 0), int(number))
    found = {}
    for key, generation in generations.items():
        path = folder / f"{key}.{generation}"
        with suppress(FileNotFoundError):  # released meanwhile
            found[key] = Holder(path, path.read_bytes())
    return found


class StallWatch:
    """Finds leases whose holders give no sign of life; each is reported once.

    A holder that is known to be gone is left out: its lease is free at once for the engine's retry.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[Path, tuple[bytes, float]] = {}
        self._reported: set[str | None] = set()  # by token

    def stalled(self) -> dict[str, Holder]:
        """Return the holders whose lease has not changed for so long, by key."""
        now, found, seen = time.monotonic(), {}, {}
        for key, holder in holders(self.folder).items():
            content, since = self._seen.get(holder.path, (b"", now))
            since = since if content == holder.content else now
            seen[holder.path] = holder.content, since
            if now - since < holder.patience or holder.token in self._reported or holder.gone:
                continue
            self._reported.add(holder.token)
            found[key] = holder
        self._seen = seen
        return found


def _acquire(folder: Path, key: str, seconds: float) -> tuple[Path, str, bool]:
    token, seen, since = uuid.uuid4().hex, b"", 0.0
    while True:
        latest = max(_generations(folder, key), default=0)
        stalled = False
        if latest:
            try:
                holder = Holder(path := folder / f"{key}.{latest}", path.read_bytes())
            except FileNotFoundError:
                continue  # released meanwhile
            if holder.content != seen or not since:
                seen, since = holder.content, time.monotonic()
            stalled = time.monotonic() - since >= holder.patience
            if not stalled and not holder.gone:
                time.sleep(min(1.0, seconds / _BEATS))
                continue
            stalled = not holder.gone
        path = folder / f"{key}.{latest + 1}"
        try:
            with path.open("xb") as file:
                file.write(_content(0, token, seconds))
        except FileExistsError:
            continue  # another process was faster
        except OSError:
            path.unlink(missing_ok=True)  # a full disk: no lease without a content
            raise
        return path, token, stalled


def _generations(folder: Path, key: str) -> list[int]:
    numbers = (
        entry.name[len(key) + 1 :]
        for entry in os.scandir(folder)
        if entry.name.startswith(f"{key}.")
    )
    return [int(number) for number in numbers if number.isdigit()]


def _beat(path: Path, token: str, seconds: float, released: threading.Event) -> None:
    """Renew a lease until it is released; end this process if another one has taken it."""
    count = 0
    while not released.wait(seconds / _BEATS):
        if lost_to := _taken_by(path, token):
            if released.is_set():
                return
            print(
                f"antiphase: {path.stem}: {lost_to} took over, because this process gave no sign "
                f"of life for {seconds:g} s or more; it ends here, the other continues",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)  # safe: checkpoints are complete at any moment
        count += 1
        with suppress(OSError), path.open("r+b") as file:  # in place: needs no disk space
            file.write(_content(count, token, seconds))


def _taken_by(path: Path, token: str) -> str | None:
    """Return who has the lease instead of its holder; None if nobody has."""
    key, _, generation = path.name.rpartition(".")
    try:
        latest = max(_generations(path.parent, key), default=0)
        if latest > int(generation):
            return str(Holder(path, path.with_name(f"{key}.{latest}").read_bytes()))
        holder = Holder(path, path.read_bytes())
        return None if holder.token in (token, None) else str(holder)
    except FileNotFoundError:
        return "another process"  # it has also finished
    except OSError:
        return None  # the folder cannot be reached now


def _release(path: Path, token: str) -> None:
    """Remove a lease and the earlier ones of its key, its own last."""
    key, _, generation = path.name.rpartition(".")
    with suppress(OSError):
        if Holder(path, path.read_bytes()).token != token:
            return
        for number in sorted(_generations(path.parent, key)):
            if number <= int(generation):
                path.with_name(f"{key}.{number}").unlink(missing_ok=True)


def _content(count: int, token: str, seconds: float) -> bytes:
    """Return the content of a lease; its length never changes."""
    process = os.getpid()
    fields = {
        "token": token,
        "patience": seconds,
        "host": socket.gethostname(),
        "process": process,
        "machine": _machine(),
        "started": _start_time(process),
    }
    return f"{count:0{_COUNT}}{json.dumps(fields)}".encode()


@functools.lru_cache(maxsize=1)
def _machine() -> str:
    """Return what is the same for processes that see each other's ids; "" where it is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_time(process: int) -> str | None:
    """Return when a process of this machine started; None if it is gone, or a zombie."""
    try:
        state, *rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else rest[18]
