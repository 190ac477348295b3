"""The site: every public name is documented and on a page, and the strict build passes."""

import importlib
import os
import pkgutil
import re
import subprocess
import sys
import types

import pytest

import antiphase
from tests.docs.pages import PAGES, ROOT, script, text

API = [page for page in PAGES if page.startswith("docs/api/")]
reference = script("api_reference")


@pytest.mark.parametrize("page", API)
def test_every_public_name_of_a_page_is_documented(page):
    assert reference.problems(text(page)) == []


def test_every_room_with_public_names_has_a_page():
    shown = set(re.findall(r"<!-- api: ([\w.]+) -->", "".join(map(text, API))))
    for room in pkgutil.iter_modules(antiphase.__path__, "antiphase."):
        if room.name == "antiphase.cli":  # commands, documented by --help
            continue
        if room.ispkg and hasattr(importlib.import_module(room.name), "__all__"):
            assert room.name in shown, f"{room.name} is on no page of docs/api"


def test_an_undocumented_name_is_a_problem(monkeypatch, caplog):
    module = types.ModuleType("antiphase.fake")
    exec("def bare(): pass\ndef told():\n    'Do it.'\nLIMIT = 3", vars(module))
    for name in ("bare", "told"):
        vars(module)[name].__module__ = "antiphase.fake"
    module.__all__ = ["LIMIT", "bare", "told"]
    monkeypatch.setitem(sys.modules, "antiphase.fake", module)
    found = reference.problems("<!-- api: antiphase.fake -->")
    assert found == [
        "antiphase.fake.LIMIT is not described on its page",
        "antiphase.fake.bare has no docstring",
    ]
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="api/fake.md"))
    reference.on_page_markdown("<!-- api: antiphase.fake -->", page=page)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2  # strict fails


def test_a_page_becomes_the_reference_of_its_names():
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="api/ops.md"))
    reference.on_pre_build()
    made = reference.on_page_markdown("<!-- api: antiphase.ops -->", page=page)
    assert "::: antiphase.ops.functional.diff_attention\n" in made
    assert reference.on_page_markdown("<!-- api: antiphase.ops -->", page=page) == ""  # once
    index = reference.on_page_markdown("<!-- api-index: antiphase -->", page=page)
    assert "[`diff_attention`][antiphase.ops.functional.diff_attention]" in index


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        check=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    for page in tmp_path.rglob("*.html"):
        sources = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]+)', page.read_text()
        )
        assert not sources, f"{page.name} loads {sources} from the network"
