"""`antiphase explore`: attention maps in a browser, from a local server or as one saved page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from antiphase.cli.options import (
    Quiet,
    require_at_least,
    require_output_file,
    require_packages,
)
from antiphase.cli.output import Output

if TYPE_CHECKING:
    from antiphase.explorer.models import ModelShelf
    from antiphase.explorer.study import StudyView


def explore(
    models: Annotated[
        Optional[list[str]],
        typer.Argument(
            help="models: shipped ones, smollm2, run or model folders, hub names; the first two "
            "are shown side by side; default: all shipped models"
        ),
    ] = None,
    save: Annotated[
        Optional[Path], typer.Option(help="write one HTML file instead, for use without a server")
    ] = None,
    text: Annotated[
        Optional[list[str]],
        typer.Option(help="with --save, a text to show, in the models' tokens; repeat for several"),
    ] = None,
    examples: Annotated[int, typer.Option(help="with --save, examples of the task")] = 3,
    length: Annotated[Optional[int], typer.Option(help="with --save, tokens of an example")] = None,
    study: Annotated[
        Optional[Path], typer.Option(help="folder of a study; default: the published one")
    ] = None,
    host: Annotated[str, typer.Option(help="address to bind to")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="of the server; 0 for any free one")] = 8020,
    allow_host: Annotated[
        Optional[list[str]],
        typer.Option(help="a further name that the server answers to; repeat for several"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="longest sequence")] = 512,
    browser: Annotated[bool, typer.Option(help="open the page in a browser")] = True,
    quiet: Quiet = False,
) -> None:
    """Explore attention maps in a browser: hover tokens, open heads, scale lam, run it again."""
    require_at_least(0, port=port)
    require_at_least(1, examples=examples)
    require_at_least(8, max_tokens=max_tokens, length=length)
    require_output_file("--save", save, (".html",))
    if save is None and text:
        raise ValueError("--text: is for --save; in the browser, type the text on the page")
    require_packages("the explorer", "explorer", "plotly", "starlette", "uvicorn")
    from antiphase.explorer.models import ModelShelf, model_entry
    from antiphase.explorer.study import StudyView
    from antiphase.models.locate import shipped_models

    output = Output(quiet=quiet)
    names = list(dict.fromkeys(models)) if models else _default(list(shipped_models()))
    entries = [model_entry(name) for name in names]
    shown = StudyView(study)
    entries += [entry for entry in shown.entries() if entry.name not in names]
    shelf = ModelShelf(entries)
    if save is not None:
        from antiphase.explorer.save import save_page
        from antiphase.explorer.state import Drawn

        with output.progress.status("computing the maps"):
            notes = save_page(
                shelf, names, save, texts=text or (), examples=examples, drawn=Drawn(length=length)
            )
        for note in notes:
            output.note(note)
        output.wrote(save)
        return
    _serve(shelf, names, shown, (host, port), allow_host or [], max_tokens, browser, output)


def _default(shipped: list[str]) -> list[str]:
    """Return the shipped models, a differential and the standard one first: side by side."""
    first = [name for name in ("diff_v1", "standard") if name in shipped]
    return [*first, *(name for name in shipped if name not in first)]


def _serve(
    shelf: "ModelShelf",
    names: list[str],
    study: "StudyView",
    address: tuple[str, int],
    allow_host: list[str],
    max_tokens: int,
    browser: bool,
    output: Output,
) -> None:
    from antiphase.explorer.limits import is_loopback
    from antiphase.explorer.server import Explorer, bind, build_app, serve
    from antiphase.explorer.view import Viewer

    host, port = address
    local = is_loopback(host)
    if not local:
        output.progress.print(
            f"warning: --host {host} lets other machines use this server; it has no password"
        )
    listening = bind(host, port)
    port = listening.getsockname()[1]
    named = f"[{host}]" if ":" in host else host
    page = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else named}:{port}/"
    explorer = Explorer(Viewer(shelf, max_tokens), study, first=tuple(names[:2]))
    hosts = [host, *allow_host]
    app = build_app(explorer, hosts, addresses=not local)
    output.line(f"{page}" if output.quiet else f"explorer: {page}  (Ctrl-C stops it)")
    serve(app, listening, page if browser else None)
    output.note("stopped")
