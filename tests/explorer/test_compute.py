"""What the page shows is what direct Python calls give: edits, logits, maps, metrics."""

import base64
import contextlib

import numpy as np
import pytest
import torch

from antiphase.analysis import capture, ground_truth
from antiphase.analysis.head_metrics import head_metrics
from antiphase.attention import MECHANISMS, mechanism
from antiphase.explorer.compute import (
    SupersededError,
    compute,
    default_head,
    head_payload,
    metrics_of,
    packed_map,
    predictions,
    thumbnails,
)
from antiphase.explorer.edits import Edits, HeadEdit, parse_edits, parse_factors
from antiphase.explorer.models import ExploredModel, ModelEntry
from antiphase.explorer.sequences import TooLongError, sequence_of, tasks_of
from antiphase.explorer.state import Drawn
from antiphase.tasks import task
from tests.explorer.cases import SHIPPED, shipped
from tests.models.tiny import model as tiny

NOISY = ("diff_v1", "diff_v2")


@contextlib.contextmanager
def scaled_lambda(model, factors):
    """Multiply lam itself before the model's own kernel uses it: no map is materialised."""
    layers = model.model.attention_layers
    for layer, factor in factors.items():
        plain = layers[layer].project

        def project(inputs, plain=plain, factor=factor):
            heads = plain(inputs)
            heads.lam = factor * heads.lam
            return heads

        layers[layer].project = project
    try:
        yield
    finally:
        for layer in factors:
            del layers[layer].project


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize(("text", "factors"), [("0", {0: 0, 1: 0}), ("1.7", {0: 1.7, 1: 1.7})])
@pytest.mark.parametrize("layer", [None, 1])
def test_a_scaled_lambda_gives_the_logits_of_a_model_with_that_lambda(name, text, factors, layer):
    explored = shipped(name)
    sequence = sequence_of(explored, None, Drawn(length=48, noise=1.0))
    if layer is not None:
        text, factors = f"{layer}:{text}", {layer: factors[layer]}
    edits = Edits(parse_factors("lam", text))
    found = compute(explored, sequence, edits)
    with scaled_lambda(explored.model, factors), torch.no_grad():
        expected = explored.model(sequence.ids, use_cache=False).logits[0]
        maps = capture(explored.model, sequence.ids, "all")
    torch.testing.assert_close(found.logits, expected, atol=1e-5, rtol=1e-5)
    for mine, theirs in zip(found.layers, maps.layers, strict=True):
        torch.testing.assert_close(mine.difference, theirs.difference, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mine.lam.expand_as(theirs.lam), theirs.lam, atol=1e-6, rtol=1e-6)
    plain = compute(explored, sequence, Edits())
    assert (found.logits - plain.logits).abs().max() > 1e-4


def by_hand(explored, ids, layer, edit):
    """Return the logits with A2 of a layer edited, from maps and values written out."""
    target = explored.model.model.attention_layers[layer]
    plain = target.attend

    def attend(heads, masking, backend):
        maps = target.maps(heads, masking)
        A2 = edit(maps["noise"])
        return (maps["signal"] - maps["lam"] * A2) @ heads.v

    target.attend = attend
    try:
        with torch.no_grad():
            return explored.model(ids, use_cache=False).logits[0]
    finally:
        del target.attend
        assert target.attend == plain


def test_edits_of_heads_are_applied_in_the_forward_pass():
    explored = shipped("diff_v1")
    sequence = sequence_of(explored, None, Drawn(length=40))

    def off(A2):
        return torch.cat([A2[:, :1], torch.zeros_like(A2[:, 1:2]), A2[:, 2:]], dim=1)

    def other(A2):
        return A2[:, [0, 3, 2, 3]]

    def rank(A2):
        U, s, V = torch.linalg.svd(A2[:, 1].double())
        cut = (U[..., :2] * s[:, None, :2]) @ V[:, :2]
        return torch.cat([A2[:, :1], cut.tril().float()[:, None], A2[:, 2:]], dim=1)

    for text, edit in {"0.1:off": off, "0.1:head:3": other, "0.1:rank:2": rank}.items():
        edits = Edits((), parse_edits("edits", text))
        found = compute(explored, sequence, edits)
        expected = by_hand(explored, sequence.ids, 0, edit)
        torch.testing.assert_close(found.logits, expected, atol=1e-5, rtol=1e-5)
        again = compute(explored, sequence, Edits())  # the model is as before
        assert not torch.allclose(found.logits, again.logits, atol=1e-5), text


def test_unknown_edits_say_what_there_is():
    explored = shipped("diff_v1")
    sequence = sequence_of(explored, None, Drawn())
    for edits, says in (
        (Edits(((5, 1.5),)), "there are the layers 0 to 1"),
        (Edits((), (HeadEdit(0, 4, "off"),)), "has the heads 0 to 3"),
        (Edits((), (HeadEdit(0, 0, "head", 9),)), "has the heads 0 to 3"),
        (Edits((), (HeadEdit(0, 0, "rank", 65),)), "a rank from 1 to 64"),
    ):
        with pytest.raises(ValueError, match=says):
            compute(explored, sequence, edits)
    standard = shipped("standard")
    with pytest.raises(ValueError, match="has one map per head"):
        compute(standard, sequence_of(standard, None, Drawn()), Edits(((0, 0.5),)))


def test_a_computation_stops_when_it_is_superseded():
    explored = shipped("diff_v1")
    sequence = sequence_of(explored, None, Drawn())
    asked = []
    with pytest.raises(SupersededError):
        compute(
            explored, sequence, Edits(((None, 0.5),)), lambda: len(asked.append(0) or asked) > 2
        )
    assert "attend" not in vars(explored.model.model.attention_layers[0])
    assert not any(block._forward_pre_hooks for block in explored.model.model.layers)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_next_token_and_the_answer(name):
    explored = shipped(name)
    sequence = sequence_of(explored, None, Drawn(length=48))
    before = compute(explored, sequence, Edits())
    edits = Edits(((None, 0.0),)) if name in NOISY else Edits()
    now = compute(explored, sequence, edits)
    found = predictions(now, before, sequence, explored.token_name)
    with torch.no_grad():
        logits = explored.model(sequence.ids).logits[0]
    row, answer = sequence.row, int(sequence.ids[0, sequence.row + 1])
    assert sequence.roles[row] == "query"
    assert sequence.roles[row + 1] == "target"
    assert found["answer"]["token"][row] == explored.vocabulary[answer]
    assert found["answer"]["logit before"][row] == pytest.approx(
        float(logits[row, answer]), abs=1e-5
    )
    assert found["answer"]["logit"][row] == float(now.logits[row, answer])
    p = logits[row].softmax(-1)
    assert found["answer"]["probability before"][row] == pytest.approx(float(p[answer]), abs=1e-6)
    shown = found["top"][row]
    assert [entry[1] for entry in shown] == sorted((entry[1] for entry in shown), reverse=True)
    assert shown[0][0] == explored.vocabulary[int(now.logits[row].argmax())]
    if name not in NOISY:
        assert shown[0][0] == explored.vocabulary[answer], "a trained model finds its needle"
        assert shown[0][1] == pytest.approx(float(p.max()), abs=1e-6)


@pytest.mark.parametrize("name", SHIPPED)
def test_metrics_are_those_of_the_analysis(name):
    explored = shipped(name)
    sequence = sequence_of(explored, None, Drawn(length=56, example=3))
    computation = compute(explored, sequence, Edits())
    data = task("needle")(
        split="test",
        size=5,
        **(explored.recipe.task_options | {"length": 56, "repeats": 0, "queried": 1}),
    )
    truth = ground_truth(data.examples([3]))
    assert sequence.relevant == {
        int(truth.rows[0, 0]): truth.relevant[0, 0].nonzero()[:, 0].tolist()
    }
    maps = capture(explored.model, torch.from_numpy(data.examples([3]).tokens), truth.rows)
    best = max(
        (float(head_metrics(m, truth, answers=True)["mass on R"][0, h]), layer, h)
        for layer, m in enumerate(maps.layers)
        for h in range(m.signal.shape[1])
    )
    layer, head = default_head(computation, sequence)
    assert (layer, head) == best[1:]
    found = metrics_of(computation, sequence, layer, head)
    expected = head_metrics(maps.layers[layer], truth, answers=True)
    for metric in ("mass on R", "mass on S", "mass on I", "entropy"):
        assert found[metric] == pytest.approx(float(expected[metric][0, head]), abs=1e-5)
    assert ("CMRR, dB" in found) == (name in NOISY)
    assert found["effective rank, A"] >= 1


def unpacked(packed):
    """Return a packed map as [T, T], as the page decodes it."""
    T = packed["T"]
    values = np.frombuffer(base64.b64decode(packed["data"]), dtype="<i2") * packed["scale"]
    found = np.zeros((T, T))
    found[np.tril_indices(T)] = values
    return torch.from_numpy(found)


def test_a_packed_map_keeps_four_digits():
    explored = shipped("diff_v2")
    sequence = sequence_of(explored, None, Drawn())
    m = compute(explored, sequence, Edits()).layers[1]
    for A in (m.signal[0, 0], m.difference[0, 3], torch.zeros(5, 5)):
        limit = 2e-5 * float(A.abs().max())
        assert (unpacked(packed_map(A)) - A).abs().max() <= limit


def test_a_head_for_the_browser_has_its_maps():
    explored = shipped("diff_v2")
    sequence = sequence_of(explored, None, Drawn())
    computation = compute(explored, sequence, Edits(((None, 0.5),)))
    found = head_payload(computation, sequence, 1, 3)
    m = computation.layers[1]
    lam = torch.tensor(found["lam"])[:, None]
    difference = unpacked(found["signal"]) - lam * unpacked(found["noise"])
    assert (difference - m.difference[0, 3]).abs().max() < 1e-4
    assert "difference" not in found, "the page computes it"
    standard = shipped("standard")
    one = head_payload(compute(standard, sequence, Edits()), sequence, 0, 7)
    assert not {"noise", "lam", "difference"} & set(one)


def test_thumbnails_show_the_largest_weight_of_each_cell():
    explored = shipped("diff_v1")
    sequence = sequence_of(explored, None, Drawn(length=56))
    m = compute(explored, sequence, Edits()).layers[0]
    small = thumbnails(m)
    cells = np.frombuffer(base64.b64decode(small["data"]), dtype=np.int8).reshape(4, 28, 28)
    block = m.difference[0, 2, 30:32, 6:8].flatten()
    largest = float(block[block.abs().argmax()])
    assert cells[2, 15, 3] == round(max(-1.0, min(1.0, largest / 0.5)) * 127)


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_every_mechanism_can_be_explored(name):
    """Also those that mix sequences, keep a running sum, or change the map after the difference."""
    explored = ExploredModel(ModelEntry(name, name), tiny(name).eval(), None, None)
    sequence = sequence_of(explored, None, Drawn())
    if not mechanism(name).has_maps:
        with pytest.raises(ValueError, match=f"{name} has no attention maps"):
            compute(explored, sequence, Edits())
        return
    before = compute(explored, sequence, Edits())
    for layer, m in enumerate(before.layers):
        found = head_payload(before, sequence, layer, m.signal.shape[1] - 1)
        assert ("noise" in found) == bool(explored.noise_heads[layer])
    if any(explored.noise_heads):
        now = compute(explored, sequence, Edits(((None, 0.5),)))
        assert not torch.allclose(now.logits, before.logits, atol=1e-7)
        # with a factor of 1 the edited forward pass gives what the kernel gives
        edits = Edits((), tuple(HeadEdit(0, h, "head", h) for h in range(explored.noise_heads[0])))
        same = compute(explored, sequence, edits)
        torch.testing.assert_close(same.logits, before.logits, atol=1e-5, rtol=1e-4)


def test_tasks_and_text_in_the_tokens_of_a_model():
    explored = shipped("diff_v1")
    assert tasks_of(explored) == ["needle", "many_shot", "unanswerable"]
    many = sequence_of(explored, None, Drawn(task="many_shot", length=40))
    assert "trained on needle" in many.note
    assert {"key", "answer", "query", "target"} <= set(many.roles)
    refused = [
        sequence_of(explored, None, Drawn(task="unanswerable", example=i)).tokens[-1]
        for i in range(8)
    ]
    assert "<none>" in refused
    assert any(token.startswith("val") for token in refused)
    text = sequence_of(explored, "<bos> key3 val5 f1 key3", Drawn())
    assert (text.row, text.answers) == (4, False)
    for given, says in (
        ("<bos> key99", "is no token of diff_v1.*did you mean 'key9'"),
        ("<bos>", "at least 2"),
    ):
        with pytest.raises(ValueError, match=says):
            sequence_of(explored, given, Drawn())
    with pytest.raises(TooLongError, match="has 513 tokens, at most 512"):
        sequence_of(explored, "f1 " * 513, Drawn())
    with pytest.raises(ValueError, match="needles: got 40"):
        sequence_of(explored, None, Drawn(needles=40))
    with pytest.raises(TooLongError, match="has 4000 tokens"):
        sequence_of(explored, None, Drawn(length=4000))
