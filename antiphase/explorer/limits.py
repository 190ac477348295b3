"""What protects a local server: the Host check, the limit of a body, and turns by session."""

import asyncio
import ipaddress
import json
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 256 * 1024  # bytes of a request
MAX_SESSIONS = 256  # whose newest request is remembered
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class BodyTooLargeError(ValueError):
    """A request has more bytes than allowed."""


def host_name(header: str) -> str:
    """Return the name or address of a Host header, without its port and in lower case."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def is_loopback(host: str) -> bool:
    """Return whether a host to bind to can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Middleware: reject requests for other hosts, and add headers that restrict the page.

    A page of another site can make a browser send requests to this machine under a name of its
    own (DNS rebinding); the Host header then has that name. An address as Host cannot be rebound.

    Args:
        app: to protect.
        hosts: names that are allowed beside this machine's own.
        addresses: whether any IP address is allowed, for servers that others can reach.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] = (), *, addresses: bool = False
    ) -> None:
        self.app, self.addresses = app, addresses
        self.hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 403."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        given = [v.decode("latin-1") for k, v in scope["headers"] if k == b"host"]
        origins = [v.decode("latin-1") for k, v in scope["headers"] if k == b"origin"]
        names = [host_name(host) for host in given]
        names += [host_name(origin.partition("://")[2]) for origin in origins]
        if len(given) == 1 and all(map(self._allowed, names)):
            await self.app(scope, receive, send_guarded)
            return
        shown = ", ".join(name[:80] for name in names) or "none"
        response = JSONResponse(
            {
                "error": f"host: got {shown}; this explorer answers to localhost and its address "
                "only; start it with --allow-host NAME to add one"
            },
            403,
        )
        await response(scope, receive, send_guarded)

    def _allowed(self, name: str) -> bool:
        if name in self.hosts:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.addresses or address.is_loopback


async def read_json(request: Request, most: int = MAX_BODY) -> Any:
    """Return the JSON of a request's body.

    Raises:
        BodyTooLargeError: it has more than `most` bytes; they are not read.
        ValueError: it is no JSON.
    """
    too_large = BodyTooLargeError(f"body: has more than {most} bytes, which is the limit")
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > most:
        raise too_large
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise too_large
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise ValueError("content-type: expected application/json")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"body: is no JSON ({str(error)[:80]})") from error


class Turn:
    """A request's place among those of its session."""

    def __init__(self, turns: "Turns", session: "_Session") -> None:
        session.newest += 1
        self._turns, self._session, self._number = turns, session, session.newest

    def superseded(self) -> bool:
        """Return whether a newer request of the session has come, or the server is stopping."""
        return self._turns.closed or self._number != self._session.newest

    @property
    def lock(self) -> asyncio.Lock:
        """Return the lock that lets one request of the session compute at a time."""
        return self._session.lock


class _Session:
    def __init__(self) -> None:
        self.newest, self.lock = 0, asyncio.Lock()


class Turns:
    """The newest request of each session wins; sessions that were not seen lately are forgotten."""

    def __init__(self, most: int = MAX_SESSIONS) -> None:
        self.most, self.closed = most, False
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def begin(self, session: str) -> Turn:
        """Return the turn of a new request; the session's older ones are superseded."""
        found = self._sessions.setdefault(session, _Session())
        self._sessions.move_to_end(session)
        while len(self._sessions) > self.most:
            self._sessions.popitem(last=False)
        return Turn(self, found)

    def close(self) -> None:
        """Let every request end at its next layer: the server is stopping."""
        self.closed = True

    def __len__(self) -> int:
        return len(self._sessions)
