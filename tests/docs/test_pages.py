"""What the pages say is so: their code runs, their links lead somewhere, their commands exist."""

import functools
import os
import re
import subprocess
import sys

import pytest
import torch

from antiphase.attention import MECHANISMS
from antiphase.models import AntiphaseForCausalLM, preset
from antiphase.models.config_checks import can_be_bidirectional, can_be_cross
from tests.docs.pages import PAGES, ROOT, text

RUN = ["docs/start.md", "docs/backends.md", "docs/encoder-decoder.md"]
RUN += [page for page in PAGES if page.startswith("docs/guides/")]


@pytest.mark.parametrize("page", RUN)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", text(page), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": page})


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_to_files_and_headings(page):
    prose = re.sub(r"```.*?```", "", text(page), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page}: {target} leads nowhere"
        if anchor:
            assert anchor in headings(file.read_text(encoding="utf-8")), f"{page}: {target}"


def headings(markdown: str) -> set[str]:
    """Return the anchors that GitHub gives to headings."""
    lines = re.findall(r"^#+ (.*)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


COMMANDS = sorted(
    {
        line.split("  #")[0].strip()
        for page in PAGES
        if page != "docs/log.md"  # a record: its commands are those of their day
        for block in re.findall(r"```\n(.*?)```", text(page).replace("\\\n", " "), re.DOTALL)
        for line in block.splitlines()
        if line.startswith("antiphase ")
    }
    | {
        found
        for page in ("README.md", "docs/start.md")
        for found in re.findall(r"`(antiphase [a-z][^`]*)`", text(page))
    }
)


@functools.cache
def help_of(*command: str) -> str:
    """Return what `antiphase COMMAND --help` prints; fails if there is no such command."""
    ran = subprocess.run(
        [sys.executable, "-m", "antiphase", *command, "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_pages_exist(command):
    words = command.split()[1:]
    name = words[:2] if words[0] in ("bench", "data") else words[:1]
    for flag in {word.split("=")[0] for word in words if word.startswith("--")}:
        assert re.search(rf"{flag}\b", help_of(*name)), f"{command}: has no {flag}"
    assert help_of(*name)


def test_the_table_of_mechanisms_states_what_the_code_does():
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text("docs/choose-a-mechanism.md"), re.MULTILINE)
    split = [(name, [cell.strip() for cell in cells.split("|")]) for name, cells in rows]
    table = {name: cells for name, cells in split if len(cells) == 7}  # of the second table
    assert list(table) == list(MECHANISMS)
    for name, (*_, cache, static, window) in table.items():
        assert static == ("yes" if MECHANISMS[name].static_cache else "no"), name
        assert window == ("no" if MECHANISMS[name].running_state else "yes"), name
        ratio = cached_values(name) / cached_values("standard")
        assert float(cache) == pytest.approx(ratio, abs=0.006), name


def test_pages_name_the_mechanisms_that_cannot_have_a_role():
    not_encoder = {n for n, kind in MECHANISMS.items() if not can_be_bidirectional(kind)}
    not_cross = {n for n, kind in MECHANISMS.items() if not can_be_cross(kind)}
    for page, row, expected in (
        ("docs/encoder-decoder.md", r"encoder \| .* \| (.*)", not_encoder),
        ("docs/encoder-decoder.md", r"cross-attention \| .* \| (.*)", not_cross),
        ("docs/choose-a-mechanism.md", r"attention in both directions \| (.*?) \|", not_encoder),
        ("docs/choose-a-mechanism.md", r"a decoder's cross-attention \| (.*?) \|", not_cross),
        ("examples/README.md", r".*2017 Transformer (.*), trained", not_cross),
        ("examples/README.md", r".*vision transformer (.*), trained", not_encoder),
    ):
        (found,) = re.findall(rf"^\| {row}", text(page), re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", found)) == expected, f"{page}: {row}"


@functools.cache
@torch.no_grad()
def cached_values(name: str) -> int:
    """Return how many keys and values one token adds to the cache of a layer of `mini`."""
    model = AntiphaseForCausalLM(preset("mini", name, num_hidden_layers=1, vocab_size=8))
    two = torch.ones(2, 1, dtype=torch.long)
    layer = model(two, use_cache=True).past_key_values.layers[0]
    return (layer.keys.numel() + layer.values.numel()) // 2


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_windows_work_or_raise_as_the_table_says(name):
    if MECHANISMS[name].running_state:
        with pytest.raises(ValueError, match="a running state"):
            preset("nano", name, sliding_window=4)
        return
    model = AntiphaseForCausalLM(preset("nano", name, sliding_window=4)).eval()
    with torch.no_grad():
        maps = model(torch.randint(2, 100, (2, 12)), output_attentions=True).attentions
    assert all((A[..., -1, :-4] == 0).all() for A in maps)
