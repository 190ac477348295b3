"""A results.json that anyone can have written: what does not fit raises, nothing is executed."""

import json
import os
from copy import deepcopy

import pytest

from antiphase.analysis.statistics import student_t
from antiphase.experiments.attention_example import AttentionExample, AttentionRow, HeadMap
from antiphase.experiments.experiment import Chart, Heatmap, Table
from antiphase.experiments.lock import new_lock
from antiphase.experiments.report import write_report
from antiphase.experiments.results import Claim, Result, Study, load_study
from antiphase.experiments.verdicts import Effect, Prediction, learned
from tests.cli.runner import invoke

SCRIPT = "'\"></td></script><script>alert(1)</script>[here](javascript:a) [here\\](javascript:a)"
GAIN = Effect("accuracy", "V1", versus="standard", condition="under stress")
MEAN = student_t([0.05, 0.04, 0.06, 0.05, 0.05])


@pytest.fixture
def stored(tmp_path):
    """The content of a results.json with every kind of field; names that are keys have a script."""
    prediction = Prediction("cancelling", GAIN, "more", 0.02, "why", (learned("V1"),), primary=True)
    found = Result(
        *(1, "title", "question", [prediction], {GAIN: MEAN, learned("V1").effect: MEAN}),
        tables=[Table("table", ["", "mean"], [["name", MEAN]], "note")],
        figures=[
            Chart("chart", "x", "y", {SCRIPT: [("place", MEAN)], "other": [("place", MEAN)]}),
            Heatmap("heatmap", "x", "y", ["column"], ["row"], [[0.5]], "unit"),
        ],
        notes=["note"],
        arms={SCRIPT: "changes"},
        study_id="study",
        seeds=[0, 1, 2, 3, 4],
        keys=["key"],
    )
    unrun = Result(2, "title", "question", [prediction], why_not="it failed")
    attention = AttentionExample(
        *(["a", "b", "c"], "b", [0, 1], [2], 0, 0, "as trained"),
        [AttentionRow("V1", 1, [0.1] * 3, [0.1] * 3, [0.1] * 3, "b", 0.5, 0.5)],
        [HeadMap("V1", 0, 0, True, "A1", 0.5, [[1000], [500, 500], [300, 300, 400]])],
    )
    lock = new_lock("study", found.seeds, {1: [prediction], 2: [prediction]}, {})
    study = Study(
        *([found, unrun], [Claim("what", "0.5", "0.4", MEAN)], [0], {"cpu": "name"}),
        recipe={SCRIPT: "value", "model": {"name": ["value"]}},
        study_id="study",
        seeds=[0, 1, 2, 3, 4],
        lock=lock,
        training=[Table("table", ["", "mean"], [["name", "value"]], "note")],
        attention=attention,
    )
    study.save(tmp_path)
    return json.loads((tmp_path / "results.json").read_text())


def leaves(content, path=()):
    """Yield the path of every value that is no list or object."""
    if isinstance(content, dict | list):
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in pairs:
            yield from leaves(value, (*path, key))
    else:
        yield path


def replaced(content, path, value):
    changed = deepcopy(content)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def load(folder, content):
    (folder / "results.json").write_text(json.dumps(content))
    return load_study(folder)


def test_a_script_in_any_field(stored, tmp_path):
    """A field that holds no text raises; all others at once show the script as text."""
    content, raised = stored, []
    for path in leaves(stored):
        try:
            load(tmp_path, replaced(stored, path, SCRIPT))
            content = replaced(content, path, SCRIPT)
        except ValueError:
            raised.append(".".join(map(str, path)))
    for name in ("results.0.number", "results.0.seeds.0", "seeds.0", "lock.seeds.0", "lock.dirty"):
        assert name in raised
    assert {"attention.maps.0.arm", "attention.maps.0.layer", "claims_seeds.0"} <= {*raised}
    page = write_report(load(tmp_path, content), tmp_path).read_text()
    assert content["results"][0]["title"] == content["lock"]["commit"] == SCRIPT
    assert "alert(1)" in page
    markdown = (tmp_path / "report.md").read_text()
    assert "<script>alert" not in page
    assert "<script>" not in markdown
    assert "](javascript" not in markdown  # nor with a backslash, which another one escapes
    assert {p.name for p in tmp_path.iterdir()} == {
        *("results.json", "report.html", "report.md", "attention.png", "figures")
    }


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("results.0.seeds", ["1"], r"results\[0\].seeds\[0\]: got '1', expected int"),
        ("results.0.seeds", "0123", r"results\[0\].seeds: got '0123', expected list\[int\]"),
        ("results.0.number", True, r"results\[0\].number: got True, expected int"),
        ("results.0.title", "\x1b[2J", r"results\[0\].title: got '\\x1b\[2J', expected str"),
        ("results.0.predictions.0.reading", "mine", "reading: got 'mine', allowed are cancelling"),
        ("results.0.tables.0.rows", [["a"]], "table 'table': got 1 rows of 1, expected rows of 2"),
        ("results.0.figures.1.values", [[1, 2]], "figure 'heatmap': got 1 rows of 2, expected 1"),
        ("results.0.figures.0.series.other", [[[], {}]], "place on the x axis"),
        ("results.0.effects", {}, "list"),
        ("results", None, ""),
        ("lock", {}, "lock.study_id: got None, expected str"),
        ("recipe", {"a": {"b": ["\x07"]}}, r"recipe\['a'\]\['b'\]\[0\]: got"),
        ("attention.answer", [], r"attention.answer: got \[\], expected positions below 3"),
        ("attention.query", [3], r"attention.query: got \[3\], expected positions below 3"),
        ("attention.maps.0.arm", "x/../../../y", "got the arm 'x/../../../y', expected a name"),
        ("attention.maps.0.thousandths", ["1"], "does not have 3 tokens"),
        ("attention.rows.0.signal", [0.5], "attention of 'V1'"),
    ],
)
def test_what_the_lab_does_not_write(stored, tmp_path, path, value, says):
    keys = [int(key) if key.isdigit() else key for key in path.split(".")]
    if path != "results.0.effects":
        with pytest.raises(ValueError, match=f"not written by the lab: .*{says}"):
            load(tmp_path, replaced(stored, keys, value))
    else:  # without effects: known when verdicts are recomputed
        with pytest.raises(ValueError, match="was not measured"):
            write_report(load(tmp_path, replaced(stored, keys, value)), tmp_path)


@pytest.mark.parametrize("content", ["[]", "[1]", '"text"', "[" * 100_000, "{}", '{"format": 2}'])
def test_a_file_that_is_no_study(tmp_path, content):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=r"results\.json"):
        load_study(tmp_path)


def test_the_command_names_the_field(stored, tmp_path):
    load(tmp_path, stored)
    (tmp_path / "results.json").write_text(json.dumps(replaced(stored, ["seeds"], ["<b>"])))
    result = invoke("lab", "--report", str(tmp_path))
    assert result.exit_code == 2
    assert "study.seeds[0]: got '<b>', expected int" in result.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["figures", "figures/test-01-1.png", "attention.png"])
def test_no_figure_is_written_through_a_link(stored, tmp_path, name):
    folder, outside = tmp_path / "study", tmp_path / "outside"
    (folder / name).parent.mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("precious")
    os.symlink(outside if name == "figures" else outside / "file", folder / name)
    with pytest.raises(ValueError, match="symbolic link"):
        write_report(load(folder, stored), folder)
    assert [p.read_text() for p in outside.iterdir()] == ["precious"]
