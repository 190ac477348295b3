"""The page in a real browser: what it shows is what direct Python calls give."""

import json
import re
import shutil
import time

import pytest
import torch

from antiphase.analysis.palette import COLOURS, DIVERGING
from antiphase.explorer import models
from antiphase.explorer.compute import compute, default_head, metrics_of
from antiphase.explorer.edits import Edits, parse_edits
from antiphase.explorer.page import web_file
from antiphase.explorer.sequences import sequence_of
from antiphase.explorer.state import Drawn
from antiphase.models.locate import shipped_models
from tests.explorer.browser import chromium, needs_chromium, page_of, serving, settled, until
from tests.explorer.cases import shipped
from tests.explorer.test_compute import scaled_lambda

pytest.importorskip("playwright")
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder that still trains: metrics and two milestones, no final model."""
    folder = tmp_path_factory.mktemp("runs") / "still-training"
    (folder / "milestones").mkdir(parents=True)
    source = shipped_models()["diff_v1"]
    shutil.copy(source / "recipe.yaml", folder)
    for step in (0, 50):
        shutil.copytree(source, folder / "milestones" / f"step{step}")
    write_metrics(folder, 5)
    return folder


def write_metrics(folder, count):
    lines = [
        {"step": 10 * i, "loss": 3 / (i + 1), "lam_0": 0.2 + 0.01 * i, "lam_1": 0.35}
        for i in range(count)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def address(run):
    with serving("diff_v1", "standard", "diff_v2", str(run)) as found:
        yield found


@pytest.fixture
def page(browser):
    with page_of(browser) as found:
        yield found


def show(page, address, fragment):
    page.goto("about:blank")
    page.goto(f"{address}#{fragment}")
    settled(page)


def largest(row, n=5):
    """Return the weights of a row as the page lists them: by size, to three digits."""
    order = row.abs().argsort(descending=True, stable=True)[:n].tolist()
    return [(i, round(float(row[i]), 3)) for i in order]


def listed(page, name):
    text = page.inner_text(f'[data-largest="{name}"]')
    return [(int(i), float(w)) for i, w in re.findall(r"\((\d+)\) (-?[\d.]+)", text)]


def test_hover_colours_the_tokens_by_their_weights(page, address):
    show(page, address, "a=diff_v1&view=sequence&example=2")
    explored = shipped("diff_v1")
    sequence = sequence_of(explored, None, Drawn(example=2))
    computation = compute(explored, sequence, Edits())
    layer, head = default_head(computation, sequence)
    m = computation.layers[layer]
    rows = {"A1": m.signal, "lamA2": m.lam * m.noise, "A": m.difference}
    assert page.inner_text("[data-query]").startswith(f"query {sequence.row}")
    for row in (sequence.row, 30):
        if row != sequence.row:
            page.hover(f'[data-map="A1"] [data-i="{row}"]')
        for name, A in rows.items():
            wanted = [pair for pair in largest(A[0, head, row, : row + 1]) if abs(pair[1]) > 0.004]
            assert listed(page, name)[: len(wanted)] == wanted
    future = page.locator('[data-map="A"] [data-i="40"]')
    assert "future" in future.get_attribute("class")
    page.mouse.move(5, 5)
    page.hover("h1")
    assert page.inner_text("[data-query]").startswith(f"query {sequence.row}"), "as before"
    page.click('[data-map="A"] [data-i="20"]')
    assert "row=20" in page.url


def test_a_hover_takes_less_than_100_ms(page, address):
    show(page, address, "a=diff_v1&b=diff_v2&view=sequence&length=256")
    taken = page.evaluate(
        """() => Array.from({length: 9}, (_, k) => {
          const token = document.querySelector(`[data-map="A1"] [data-i="${100 + k}"]`);
          const begin = performance.now();
          token.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
          getComputedStyle(token).backgroundColor;
          return performance.now() - begin;
        }).sort((a, b) => a - b)[4]"""
    )
    assert page.inner_text("[data-query] >> nth=0").startswith("query 108")
    assert taken < 100


def test_colours_are_the_palette_and_zero_is_white(page, address):
    for colour in (*DIVERGING, COLOURS[2]):
        assert f"light-dark({colour}," in web_file("style.css").replace("#ffffff", "#FFFFFF")
    show(page, address, "a=diff_v1")
    assert page.evaluate("Explorer.rgb(0, 1)") == [255, 255, 255]
    assert page.evaluate("Explorer.rgb(-1, 1)") == [0xD5, 0x5E, 0x00]
    assert page.evaluate("Explorer.rgb(2, 1)") == [0x00, 0x72, 0xB2]


def test_a_click_in_the_grid_opens_the_head(page, address):
    show(page, address, "a=diff_v2&view=map")
    assert page.locator("[data-cell]").count() == 16
    page.click('[data-cell="0.5"]')
    page.wait_for_selector('[data-cell="0.5"][aria-pressed=true]')
    settled(page)
    assert "a.head=0.5" in page.url
    explored = shipped("diff_v2")
    sequence = sequence_of(explored, None, Drawn())
    expected = metrics_of(compute(explored, sequence, Edits()), sequence, 0, 5)
    shown = {
        tag.get_attribute("data-metric"): float(tag.inner_text())
        for tag in page.locator("[data-metric]").all()
    }
    assert set(shown) == set(expected)
    for name, value in shown.items():
        assert value == pytest.approx(expected[name], abs=0.06), name
    assert shown["entropy"] == pytest.approx(expected["entropy"], abs=0.0006)
    page.click('.small [data-map="A2"]')
    assert "noise A2, layer 0, head 5" in page.text_content(".plot .gtitle")
    box = page.locator(".plot .plot-container").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.7 * box["height"])
    until(page, "document.querySelector('[data-readout]').textContent.includes('→')")
    i, j, value = re.search(
        r"^(\d+) .*→ (\d+) .*noise A2 ([\d.]+)", page.inner_text("[data-readout]")
    ).groups()
    A2 = compute(explored, sequence, Edits()).layers[0].noise[0, 5]
    assert float(value) == pytest.approx(float(A2[int(i), int(j)]), abs=2e-4)


def answer_logit(page):
    return float(page.get_attribute("[data-answer-logit]", "data-answer-logit"))


@pytest.mark.parametrize(("layer", "factors"), [(None, {0: 0.5, 1: 0.5}), (1, {1: 1.75})])
def test_the_slider_runs_the_model_with_that_lambda(page, address, layer, factors):
    show(page, address, "a=diff_v1&view=map&example=4&length=96")
    before = answer_logit(page)
    if layer is not None:
        page.select_option("#lam-layer", str(layer))
    page.locator("#lam").fill(str(next(iter(factors.values()))))
    until(page, f"document.querySelector('[data-answer-logit]').dataset.answerLogit != {before}")
    settled(page)
    explored = shipped("diff_v1")
    sequence = sequence_of(explored, None, Drawn(example=4, length=96))
    answer = int(sequence.ids[0, sequence.row + 1])
    with scaled_lambda(explored.model, factors), torch.no_grad():
        expected = float(explored.model(sequence.ids).logits[0, sequence.row, answer])
    assert answer_logit(page) == pytest.approx(expected, abs=1e-5)
    assert abs(expected - before) > 1e-4
    page.click("#reset")
    until(page, f"document.querySelector('[data-answer-logit]').dataset.answerLogit == {before}")
    assert ".lam" not in page.url


def test_the_noise_of_a_head_is_knocked_out_replaced_or_truncated(page, address):
    show(page, address, "a=diff_v1&view=sequence&a.head=0.1")
    explored = shipped("diff_v1")
    sequence = sequence_of(explored, None, Drawn())
    answer = int(sequence.ids[0, sequence.row + 1])
    for choice, text in (("off", "0.1:off"), ("head:3", "0.1:head:3"), ("rank", "0.1:rank:1")):
        before = answer_logit(page)
        page.select_option("[data-edit=a]", choice)
        until(
            page, f"document.querySelector('[data-answer-logit]').dataset.answerLogit != {before}"
        )
        settled(page)
        edits = Edits((), parse_edits("", text))
        expected = float(compute(explored, sequence, edits).logits[sequence.row, answer])
        assert answer_logit(page) == pytest.approx(expected, abs=1e-5)
        assert re.sub("%3A", ":", page.url).endswith(f"a.edits={text}")
    page.fill("[data-rank=a]", "5")
    page.keyboard.press("Enter")
    page.wait_for_selector(".chip:has-text('rank 5')")
    page.click(".chip")
    page.wait_for_selector(".chip", state="detached")
    assert "edits" not in page.url


def test_a_link_restores_the_view(page, browser, address):
    fragment = (
        "view=map&a=diff_v1&a.head=1.0&a.lam=0:0.5,1:1.5&a.edits=1.0:rank:3&b=standard&b.head=0.6"
        "&task=needle&length=48&example=7&row=33&map=A1"
    )
    show(page, address, fragment)
    with page_of(browser) as other:
        show(other, address, page.url.partition("#")[2])
        for one in (page, other):
            titles = one.locator(".plot .gtitle").all_text_contents()
            assert titles == [
                "diff_v1: signal A1, layer 1, head 0",
                "standard: attention A, layer 0, head 6",
            ]
        assert other.url == page.url
        for place in ("#controls", "#view .slot >> nth=0", "#view .slot >> nth=1"):
            assert other.inner_text(place) == page.inner_text(place)
    assert page.input_value("#lam-layer") == "0"
    assert page.input_value("#lam") == "0.5"
    assert "after 33" in page.inner_text("#controls")
    assert "1.0: noise of rank 3" in page.inner_text("#controls")


def test_the_keyboard(page, address):
    show(page, address, "a=diff_v1&view=sequence&a.head=0.0&row=20")
    for key, expected in (
        ("ArrowRight", "a.head=0.1"),
        ("ArrowDown", "a.head=1.1"),
        ("ArrowLeft", "a.head=1.0"),
        ("ArrowLeft", "a.head=1.3"),
        ("ArrowUp", "a.head=0.3"),
        ("j", "row=21"),
        ("k", "row=20"),
        ("n", "example=1"),
        ("2", "view=map"),
        ("5", "view=training"),
        ("1", "view=sequence"),
    ):
        page.keyboard.press(key)
        until(page, f"location.hash.includes('{expected}')")
    settled(page)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("<bos> key3 val5 f1 f2 key3 njk")
    assert "example=1" in page.url, "letters in a field are text"
    page.keyboard.press("Enter")
    page.wait_for_selector("#status.error")
    assert "'njk' is no token of diff_v1" in page.inner_text("#status")
    page.fill("#text", "<bos> key3 val5 f1 f2 key3")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('[data-map=\"A\"] .token').length == 6")
    assert "most probable val5" in page.inner_text("#controls")


def test_two_models_side_by_side(page, address):
    show(page, address, "a=diff_v1&b=standard&view=sequence")
    assert [box.inner_text() for box in page.locator(".slot h2 span:first-child").all()] == [
        "diff_v1",
        "standard",
    ]
    assert page.locator(".slot >> nth=0").locator(".tokens").count() == 3
    assert page.locator(".slot >> nth=1").locator(".tokens").count() == 1, "one map, one row"
    page.keyboard.press("s")
    page.keyboard.press("ArrowRight")
    until(page, "location.hash.includes('b.head=')")
    assert "a.head" not in page.url
    page.select_option("#a", "standard")
    until(page, "!document.getElementById('lam')")
    assert "no noise term to scale" in page.inner_text("#controls"), "no model has a slider"


def test_the_task_view_draws_examples_and_every_model_answers(page, address):
    show(page, address, "a=diff_v1&view=task")
    until(page, "document.querySelectorAll('.card[data-right]').length == 4")
    assert page.get_attribute('.card[data-model="standard"]', "data-right") == "true"
    page.select_option("[name=task]", "unanswerable")
    page.wait_for_selector("text=It was trained on needle, not on unanswerable.")
    page.fill("[name=length]", "40")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('#view .tokens .token').length == 40")
    page.click("#draw")
    until(page, "location.hash.includes('example=1')")
    settled(page)
    page.fill("[name=needles]", "90")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status.error")
    assert "needles: got 90" in page.inner_text("#status")


def test_the_study_view_opens_what_stands_behind_a_verdict(page, address):
    show(page, address, "view=study")
    page.click('[data-test="15 cancelling"]')
    page.wait_for_selector("[data-detail] .main-svg")
    detail = page.inner_text("[data-detail]")
    assert "15. Layer by layer" in detail
    assert "seed 107" in detail
    assert "mass on I, retrieval heads" in detail, "a gate"
    assert "reading=cancelling" in page.url
    page.click('[data-open="diff_v2"]')
    page.wait_for_selector("[data-cell]")
    assert "view=map" in page.url
    assert "a=diff_v2" in page.url


def test_the_training_view_follows_a_run(page, address, run):
    show(page, address, "view=training")
    page.wait_for_selector('[data-chart^="agreement"] .main-svg')
    assert "step 40 of at most 1500" in page.inner_text("[data-progress]")
    write_metrics(run, 9)
    until(page, "document.querySelector('[data-progress]').textContent.includes('step 80')")
    assert page.locator('[data-chart="lam per layer"] .legendtext').all_text_contents() == [
        "lam_0",
        "lam_1",
    ]
    page.locator("#milestone").fill("0")
    page.click("[data-open-step]")
    page.wait_for_selector("[data-cell]")
    assert "a.step=0" in page.url
    assert "step 0" in page.inner_text(".slot h2")


@pytest.mark.parametrize("view", ["sequence", "map", "task", "study&test=7", "training"])
def test_a_phone_does_not_scroll_sideways(browser, address, view):
    with page_of(browser, 390, 844, has_touch=True, is_mobile=True) as phone:
        show(phone, address, f"a=diff_v1&view={view}")
        phone.wait_for_load_state("networkidle")
        assert phone.evaluate("document.documentElement.scrollWidth") == 390
        if view == "sequence":
            phone.tap('[data-map="A1"] [data-i="12"]')
            assert phone.inner_text("[data-query]").startswith("query 12")


def test_light_and_dark(browser, address):
    with page_of(browser, color_scheme="dark") as page:
        show(page, address, "a=diff_v1")
        paper = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(paper) == "rgb(20, 23, 27)"
        assert page.evaluate("Explorer.rgb(0, 1)") == [0x1C, 0x20, 0x26], "zero is the panel"
        page.click("#theme")
        assert page.evaluate(paper) == "rgb(255, 255, 255)"
        assert page.evaluate("Explorer.rgb(0, 1)") == [255, 255, 255]
        page.reload()
        settled(page)
        assert page.evaluate(paper) == "rgb(255, 255, 255)", "the choice is remembered"


@pytest.mark.parametrize(
    ("view", "names"), [("sequence", ("PNG", "SVG", "JSON")), ("map", ("PNG", "SVG", "JSON"))]
)
def test_downloads(page, address, tmp_path, view, names):
    show(page, address, f"a=diff_v1&view={view}")
    for name in names:
        with page.expect_download() as waiting:
            page.click(f"button:text-is('{name}')")
        file = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(file)
        assert file.suffix == f".{name.lower()}"
        content = file.read_bytes()
        if name == "PNG":
            assert content.startswith(b"\x89PNG")
        elif name == "SVG":
            assert b"<svg" in content[:300]
            assert b"key11" in content
        else:
            assert json.loads(content)["tokens"][0] == "<bos>"


def test_markup_in_tokens_and_names_is_shown_and_not_run(page, tmp_path):
    """Any dialog, or an error of the page, fails the test."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    from tests.models.tiny import model

    words = ["<script>alert(1)</script>", "<img/src=x/onerror=alert(1)>", "&lt;b&gt;", "plain"]
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate([*words, "?"])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    model("diff_v1", vocab_size=61).save_pretrained(folder)
    with serving(str(folder)) as address:
        for view in ("sequence", "map"):
            show(page, address, f"view={view}")
            page.fill("#text", " ".join(words))
            page.keyboard.press("Enter")
            until(page, "location.hash.includes('text=')")
            settled(page)
            shown = page.inner_text("#controls")
            if view == "sequence":
                assert page.locator('[data-map="A"] .token').all_text_contents() == words
                page.hover('[data-map="A"] [data-i="1"]')
                assert words[1] in page.inner_text("#controls")
            else:
                ticks = page.locator(".plot .xtick text").all_text_contents()
                assert ticks[0] == words[0][:12]
                assert ticks[2] == words[2]
                assert page.text_content(".plot .gtitle").startswith("<img src=x onerror=alert(1)>")
            assert "<img src=x onerror=alert(1)>: after 3 plain" in shown
            assert page.locator("img[src=x]").count() == 0
            assert page.text_content("#a option") == "<img src=x onerror=alert(1)>"


def test_the_page_says_what_is_loading(page, monkeypatch):
    real = models.load_model

    def slow(entry, step):
        time.sleep(1.5)
        return real(entry, step)

    monkeypatch.setattr(models, "load_model", slow)
    with serving("diff_v2") as address:
        page.goto(address)
        until(page, "document.getElementById('status').textContent.includes('loading diff_v2')")
        assert page.locator("#status progress").count() == 1
        settled(page)
        assert page.inner_text("#status") == ""
        assert page.locator(".tokens").count() == 3
