"""The long description that the package index shows."""

import re
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

from hatch_readme import BRANCH, absolute_links

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://example.org/antiphase"


def test_links_are_absolute_and_lead_to_files():
    before = (ROOT / "README.md").read_text()
    after = absolute_links(before, REPOSITORY)
    assert before.count("](") == after.count("](")
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", after)
    assert {"!", ""} == {image for image, _ in links}
    for image, link in links:
        assert link.startswith("https://"), link
        if link.startswith(REPOSITORY):
            folder = f"{REPOSITORY}/{'raw' if image else 'blob'}/{BRANCH}/"
            assert link.startswith(folder)
            assert (ROOT / link.removeprefix(folder).split("#")[0]).exists(), link


def test_other_links_stay():
    text = "[a](https://b.c) [d](#e) [f](g/h.md#i) ![j](k.png)"
    blob, raw = f"{REPOSITORY}/blob/{BRANCH}", f"{REPOSITORY}/raw/{BRANCH}"
    want = f"[a](https://b.c) [d](#e) [f]({blob}/g/h.md#i) ![j]({raw}/k.png)"
    assert absolute_links(text, REPOSITORY) == want
