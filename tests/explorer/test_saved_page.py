"""The saved page: one file that works from the disk, without a network, below 8 MB."""

import json
import re

import pytest

from antiphase.explorer.compute import compute, default_head
from antiphase.explorer.edits import Edits
from antiphase.explorer.models import ModelShelf, model_entry
from antiphase.explorer.page import saved_page
from antiphase.explorer.save import save_page
from antiphase.explorer.sequences import sequence_of
from antiphase.explorer.state import Drawn
from tests.cli.runner import invoke
from tests.explorer.browser import chromium, needs_chromium, page_of, settled, until
from tests.explorer.cases import shipped
from tests.explorer.test_browser import largest, listed


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "page.html"
    result = invoke("explore", "--save", str(path))
    assert result.exit_code == 0, result.output
    assert f"wrote {path}" in result.output.replace("\n", "")
    return path


def test_it_is_below_8_mb_and_loads_nothing(saved):
    text = saved.read_text()
    assert 5e6 < saved.stat().st_size < 8e6
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=[\"']?https?:", text)
    assert "default-src 'none'" in text
    data = json.loads(re.search(r'id="saved">(.*?)</script>', text, re.DOTALL)[1])
    assert data["start"]["examples"] == 3
    assert {name: len(views) for name, views in data["views"].items()} == {
        "diff_v1": 3,
        "standard": 3,
        "diff_v2": 3,
    }
    assert len(data["views"]["diff_v2"][0]["heads"]) == 16


def test_data_cannot_end_their_script():
    page = saved_page({"views": {"x": "</script><script>alert(1)</script>"}})
    assert "alert(1)</script>" not in page


@needs_chromium
def test_it_works_from_the_disk_with_the_network_off(saved):
    pytest.importorskip("playwright")
    explored = shipped("diff_v1")
    sequence = sequence_of(explored, None, Drawn())
    layer, head = default_head(compute(explored, sequence, Edits()), sequence)
    m = compute(explored, sequence, Edits()).layers[layer]
    with chromium() as browser, page_of(browser) as page:
        requests = []
        page.context.set_offline(True)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(saved.as_uri())
        settled(page)
        assert {url.split(":")[0] for url in requests} <= {"file", "data", "blob"}
        tabs = page.locator("[role=tab]").all_text_contents()
        assert tabs == ["Sequence", "Maps"]
        page.select_option("#b", "")
        page.hover('[data-map="A1"] [data-i="33"]')
        wanted = [p for p in largest(m.difference[0, head, 33, :34]) if abs(p[1]) > 0.004]
        assert listed(page, "A")[: len(wanted)] == wanted
        page.locator("#lam").fill("2")
        until(page, "location.hash.includes('a.lam=2')")
        page.hover("h1")
        row = sequence.row
        doubled = (m.signal - 2 * m.lam * m.noise)[0, head, row, : row + 1]
        wanted = [p for p in largest(doubled) if abs(p[1]) > 0.01]
        assert listed(page, "A")[: len(wanted)] == [
            (i, pytest.approx(w, abs=0.0011)) for i, w in wanted
        ]
        page.keyboard.press("Escape")
        page.click('[data-view="map"]')
        page.click('[data-cell="0.2"]')
        until(page, "document.querySelector('[data-cell=\"0.2\"]').ariaPressed === 'true'")
        assert "layer 0, head 2" in page.text_content(".plot .gtitle")
        page.click("#next")
        until(page, "location.hash.includes('example=1')")
        again = page.url
    with chromium() as browser, page_of(browser, 390, 844) as phone:
        phone.goto(again)
        settled(phone)
        assert phone.evaluate("document.documentElement.scrollWidth") == 390
        assert "layer 0, head 2" in phone.text_content(".plot .gtitle")


def test_sequences_that_do_not_fit_are_left_out_and_named(tmp_path):
    shelf = ModelShelf([model_entry("diff_v1")])
    path = tmp_path / "a" / "page.html"
    notes = save_page(shelf, ["diff_v1"], path, examples=4, max_bytes=5_300_000)
    assert re.fullmatch(r"\d of 4 sequences were left out: 5 MB is the limit", notes[0])
    assert path.stat().st_size < 5_300_000
    with pytest.raises(ValueError, match="fewer or smaller models"):
        save_page(shelf, ["diff_v1"], path, max_bytes=10_000)


def test_texts_of_the_command_line(tmp_path):
    path = tmp_path / "page.html"
    text = "<bos> key3 val5 f1 key3"
    done = invoke("explore", "diff_v1", "--save", str(path), "--text", text, "--quiet")
    assert done.exit_code == 0, done.output
    assert '"tokens":["\\u003cbos>","key3","val5","f1","key3"]' in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing-of-that-name/x/y"], "no such folder"),
        (["--save", "page.txt"], "--save: got page.txt, expected a name that ends in .html"),
        (["--text", "f1 f2"], "--text: is for --save"),
        (["--port", "-1"], "--port: got -1"),
        (["--max-tokens", "3"], "--max-tokens: got 3, expected at least 8"),
        (["--study", "nowhere"], "nowhere: has no results.json"),
    ],
)
def test_wrong_options(arguments, says):
    result = invoke("explore", *arguments)
    assert result.exit_code == 2
    assert says in result.output
