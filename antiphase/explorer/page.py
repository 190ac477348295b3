"""The page: HTML, style and scripts from `web/`, as files of the server or as one file."""

import json
from functools import cache
from html import escape
from importlib import resources
from typing import Any

SCRIPTS = ("core", "sequence", "map", "controls", "task", "study", "training", "app")
TITLE = "Antiphase explorer"


@cache
def web_file(name: str) -> str:
    """Return the text of a file in `web/`."""
    return (resources.files("antiphase.explorer") / "web" / name).read_text(encoding="utf-8")


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """Return every file that the server offers: content and type by name.

    They are read once; no name from a request is ever opened.
    """
    from plotly.offline import get_plotlyjs

    script = "text/javascript; charset=utf-8"
    found = {f"{name}.js": (web_file(f"{name}.js").encode(), script) for name in SCRIPTS}
    found["style.css"] = (web_file("style.css").encode(), "text/css; charset=utf-8")
    found["plotly.js"] = (get_plotlyjs().encode(), script)
    return found


def served_page() -> str:
    """Return the page of a server: it loads its scripts and asks for its data."""
    names = ("plotly", *SCRIPTS)
    scripts = "".join(f'<script src="static/{name}.js" defer></script>' for name in names)
    head = f'<link rel="stylesheet" href="static/style.css">{scripts}'
    return _page(head, "")


def saved_page(data: dict[str, Any]) -> str:
    """Return a page that holds everything: it needs neither a server nor the network.

    Args:
        data: what a server would have answered, as plain JSON types.
    """
    from plotly.offline import get_plotlyjs

    policy = (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="content-security-policy" content="{policy}">'
        f"<style>{web_file('style.css')}</style>"
    )
    # no "<" in the data: nothing in it can end the script element
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    scripts = [get_plotlyjs(), *(web_file(f"{name}.js") for name in SCRIPTS)]
    body = f'<script type="application/json" id="saved">{content}</script>'
    return _page(head, body + "".join(f"<script>{script}</script>" for script in scripts))


def _page(head: str, end: str) -> str:
    page = web_file("page.html").replace("{title}", escape(TITLE))
    return page.replace("{head}", head).replace("{end}", end)
