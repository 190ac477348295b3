"""A server in this process, and pages in Debian's Chromium, for the tests of the explorer."""

import asyncio
import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from antiphase.explorer.models import ModelShelf, model_entry
from antiphase.explorer.server import Explorer, bind, build_app
from antiphase.explorer.study import StudyView
from antiphase.explorer.view import Viewer

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


@contextlib.contextmanager
def serving(*names: str, study: Path | None = None, max_tokens: int = 512) -> Iterator[str]:
    """Serve an explorer of some models from a thread; give its address."""
    shown = StudyView(study)
    entries = [model_entry(name) for name in names] + shown.entries()
    explorer = Explorer(Viewer(ModelShelf(entries), max_tokens), shown, first=names[:2])
    listening = bind("127.0.0.1", 0)
    config = uvicorn.Config(build_app(explorer), log_level="warning", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def chromium() -> Iterator:
    """Start Chromium; what it writes to the console as an error fails the test."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def page_of(browser, width: int = 1280, height: int = 900, **options) -> Iterator:
    """Open a page whose errors and dialogs fail the test."""
    problems: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "dialog", lambda dialog: (problems.append(f"dialog: {dialog.message}"), dialog.accept())
    )
    page.on(
        "console",
        lambda message: (
            message.type == "error"
            and "status of 4" not in message.text  # answers that the test asks for
            and problems.append(message.text)
        ),
    )
    yield page
    context.close()
    assert not problems


def until(page, expression: str, seconds: float = 20) -> None:
    """Wait until an expression is true; Playwright's own way would need eval on the page."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"still not: {expression}; {page.inner_text('#status')}"
        page.wait_for_timeout(20)


def settled(page) -> None:
    """Wait until the page shows the newest view."""
    until(
        page,
        "document.body?.dataset.done !== undefined && Explorer.settled()"
        " && document.getElementById('view').children.length > 0",
    )
