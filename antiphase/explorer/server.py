"""The explorer's server: one page, its scripts, and JSON for its views."""

import asyncio
import functools
import json
import logging
import socket
import threading
import webbrowser
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from antiphase import __version__
from antiphase.explorer.compute import SupersededError
from antiphase.explorer.limits import BodyTooLargeError, Guard, Turn, Turns, read_json
from antiphase.explorer.page import served_page, static_files
from antiphase.explorer.sequences import TooLongError
from antiphase.explorer.state import parse_state
from antiphase.explorer.study import StudyView
from antiphase.explorer.training import TrainingView
from antiphase.explorer.view import Viewer

log = logging.getLogger(__name__)


@dataclass
class Explorer:
    """What a server shows.

    Attributes:
        viewer: the models and their computations.
        study: whose verdicts are shown.
        training: the runs.
        first: the models of a page that names none.
    """

    viewer: Viewer
    study: StudyView
    training: TrainingView = field(default_factory=TrainingView)
    first: tuple[str, ...] = ()

    def start(self) -> dict[str, Any]:
        """Return what a page needs before its first view."""
        entries = self.viewer.shelf.entries
        of_study = {entry.name for entry in self.study.entries()}
        return {
            "version": __version__,
            "models": [
                {
                    "name": entry.name,
                    "title": entry.title,
                    "run": entry.run is not None,
                    "study": entry.name in of_study,
                    "milestones": list(entry.milestones()),
                }
                for entry in entries.values()
            ],
            "first": list(self.first),
            "max_tokens": self.viewer.max_tokens,
        }


def build_app(
    explorer: Explorer, hosts: Collection[str] = (), *, addresses: bool = False
) -> Starlette:
    """Return the server's application.

    Args:
        explorer: what it shows.
        hosts: names that it answers to beside localhost.
        addresses: whether it answers to any IP address.
    """
    turns = Turns()
    computing = anyio.CapacityLimiter(1)  # models are changed while they run, so one at a time

    async def compute(turn: Turn, work: Callable[[Callable[[], bool]], Any]) -> Response:
        """Do the work in a thread, unless a newer request of the session comes before."""
        async with turn.lock:
            if turn.superseded():
                raise SupersededError("a newer request has replaced this one")

            def answer() -> bytes:
                return json.dumps(work(turn.superseded), separators=(",", ":")).encode()

            body = await anyio.to_thread.run_sync(answer, limiter=computing)
        return Response(body, media_type="application/json")

    async def page(request: Request) -> Response:
        return HTMLResponse(served_page())

    async def static(request: Request) -> Response:
        content, kind = static_files().get(request.path_params["name"], (None, ""))
        if content is None:
            raise HTTPException(404, "there is no such file")
        return Response(content, media_type=kind)

    async def start(request: Request) -> Response:
        return JSONResponse(explorer.start())

    async def progress(request: Request) -> Response:
        return JSONResponse(explorer.viewer.shelf.progress())

    async def view(request: Request) -> Response:
        turn = turns.begin(_session(request))
        fields = await read_json(request)
        state = parse_state(fields, explorer.viewer.shelf.entries, explorer.first[0])
        return await compute(turn, functools.partial(explorer.viewer.view, state))

    async def study(request: Request) -> Response:
        return JSONResponse(explorer.study.table())

    async def test(request: Request) -> Response:
        number, models = request.path_params["number"], explorer.viewer.shelf.entries
        found = await anyio.to_thread.run_sync(explorer.study.test, number, models)
        return JSONResponse(found)

    async def training(request: Request) -> Response:
        turn = turns.begin(f"training {_session(request)}")
        name = request.query_params.get("run", "")
        entry = explorer.viewer.shelf.entries.get(name)
        if entry is None:
            raise ValueError(f"run: got {name[:80]!r}, which is no model of this explorer")
        return await compute(turn, functools.partial(explorer.training.run, entry))

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/static/{name}", static),
            Route("/api/start", start),
            Route("/api/progress", progress),
            Route("/api/view", view, methods=["POST"]),
            Route("/api/study", study),
            Route("/api/study/{number:int}", test),
            Route("/api/training", training),
        ],
        middleware=[Middleware(Guard, hosts=tuple(hosts), addresses=addresses)],
        exception_handlers={
            BodyTooLargeError: _answer(413),
            TooLongError: _answer(413),
            SupersededError: _answer(409),
            ValueError: _answer(400),
            HTTPException: _http_error,
            Exception: _failed,
        },
    )
    app.state.turns = turns
    return app


def _session(request: Request) -> str:
    """Return the name of the page that asks; pages make it up, so it is only a key."""
    given = request.headers.get("x-session", "")
    client = request.client.host if request.client else ""
    return f"{client} {given[:64]}"


def _answer(status: int) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status)

    return answer


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def _failed(request: Request, error: Exception) -> Response:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return JSONResponse({"error": "the server failed; its terminal says why"}, 500)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens: whoever reads the address can connect, and waits.

    Args:
        host: an address of this machine.
        port: 0 for any free one.

    Raises:
        ValueError: the address cannot be used, or the port is taken.
    """
    try:
        kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(kind, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        raise ValueError(
            f"--host {host} --port {port}: cannot be used ({error.strerror or error}); give "
            "another port, or 0 for any free one"
        ) from error
    return found


def serve(app: Starlette, listening: socket.socket, open_page: str | None = None) -> None:
    """Serve until Ctrl-C; requests that are being answered have three seconds to end.

    Args:
        app: the application.
        listening: a bound socket.
        open_page: an address to open in a browser once the server answers.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        timeout_graceful_shutdown=3,
        timeout_keep_alive=30,
        limit_concurrency=512,
        server_header=False,
        lifespan="off",
        ws="none",
    )
    server = _Server(config)
    server.turns = app.state.turns
    if open_page is not None:
        threading.Thread(target=_open, args=(server, open_page), daemon=True).start()
    try:
        asyncio.run(server.serve(sockets=[listening]))
    except KeyboardInterrupt:  # uvicorn has ended gracefully, then raises it again
        pass
    finally:
        listening.close()


class _Server(uvicorn.Server):
    """A server that lets what it computes end when it is told to stop."""

    turns: Turns

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop computations; what takes longer, such as loading a model, is cancelled quietly."""
        self.turns.close()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().handle_exit(sig, frame)


def _open(server: uvicorn.Server, address: str) -> None:
    import time

    for _ in range(100):
        if server.started:
            webbrowser.open(address)
            return
        time.sleep(0.05)
