"""How a new model starts: the scale of branches and logits, and what loading leaves alone."""

import functools
import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from antiphase.analysis.branch_rms import branch_rms
from antiphase.models import (
    AntiphaseConfig,
    AntiphaseForCausalLM,
    AntiphaseForSequenceClassification,
    preset,
)
from antiphase.models.initialisation import QUERIES_AND_KEYS, normed_rms, output_std
from tests.attention.cases import NAMES
from tests.models.tiny import VOCABULARY, config, model, token_ids

each = pytest.mark.parametrize("name", NAMES)
FACTOR = (
    4  # how far an attention branch may start from standard attention's, relative to its stream
)
WITH_HEAD_NORM = [
    "diff_v1", "grouped", "low_dim_noise", "low_rank_noise", "fixed_noise", "foreign_noise",
    "dint", "threshold", "shared_diff", "delta",
]  # fmt: skip
slow = pytest.mark.slow
WIDE = [pytest.param(size, marks=slow) for size in ("830m", "1.4b")]


@functools.cache
def ratios(size: str, name: str, **fields: object) -> list[float]:
    """Return the RMS of the attention branch over that of its stream at step 0, by layer."""
    torch.manual_seed(0)
    net = AntiphaseForCausalLM(preset(size, name, vocab_size=64, **fields))
    ids = torch.randint(0, 64, (2, 64), generator=torch.Generator().manual_seed(1))
    return [branch.attention_ratio for branch in branch_rms(net, ids)]


def far_from_standard(size: str, names: list[str], **fields: object) -> str:
    """Return the measured table if one of the mechanisms is outside the factor, else nothing."""
    standard = ratios(size, "standard", **fields)
    outside, rows = [], [f"{size}: attention branch over stream at step 0, by layer (x standard)"]
    for name in ("standard", *names):
        mine = ratios(size, name, **fields)
        pairs = list(zip(mine, standard, strict=True))
        if not all(1 / FACTOR <= one / other <= FACTOR for one, other in pairs):
            outside.append(name)
        cells = "  ".join(f"{one:.3f} ({one / other:.2f})" for one, other in pairs)
        rows.append(f"  {name:16}{cells}")
    return "\n".join([f"outside a factor {FACTOR}: {', '.join(outside)}", *rows]) * bool(outside)


# One layer, which makes the depth factor of all mechanisms 2^-0.5, and no feed-forward layer to
# speak of: neither changes the first layer's ratio to standard attention's.
@pytest.mark.parametrize("size", ["nano", "micro", "mini", "small", *WIDE])
def test_attention_branches_of_all_mechanisms_start_alike(size):
    one_layer = {"num_hidden_layers": 1, "match": "none", "intermediate_size": 8}
    table = far_from_standard(size, NAMES, **one_layer)
    assert not table, table


@pytest.mark.parametrize("size", ["nano", "micro", pytest.param("mini", marks=slow)])
def test_attention_branches_start_alike_in_deeper_layers(size):
    table = far_from_standard(size, NAMES)
    assert not table, table


def test_published_branches_start_far_apart():
    published = {"initialisation": "published"}
    one, other = (ratios("nano", name, **published)[0] for name in ("diff_v1", "standard"))
    assert one / other > 10


def by_part(net: AntiphaseForCausalLM) -> dict[str, list[torch.Tensor]]:
    """Return the parameters of all layers by their names inside a block."""
    parts: dict[str, list[torch.Tensor]] = {}
    for block in net.model.layers:
        for name, p in block.named_parameters():
            parts.setdefault(name, []).append(p.detach())
    return parts


def std(tensors: list[torch.Tensor]) -> float:
    return float(torch.cat([t.flatten() for t in tensors]).detach().std())


@each
def test_published_is_one_normal_distribution_and_gains_of_one(name):
    net = model(name, hidden_size=128, initializer_range=0.02, initialisation="published")
    for part, tensors in by_part(net).items():
        if part.endswith("_proj.weight"):
            assert std(tensors) == pytest.approx(0.02, rel=0.1), part
        elif "norm" in part:
            assert all((t == 1).all() for t in tensors), part
        elif ".lam." in part:
            assert std(tensors) == pytest.approx(0.1, rel=0.5), part  # few values
    assert std([net.lm_head.weight]) == pytest.approx(0.02, rel=0.1)
    embedding = net.model.embed_tokens.weight
    assert std([embedding[1:]]) == pytest.approx(0.02, rel=0.1)
    assert (embedding[0] == 0).all()  # padding


@each
def test_scaled_changes_logits_branches_and_gains(name):
    fields = {"hidden_size": 128, "num_hidden_layers": 3, "initializer_range": 0.02}
    net = model(name, branch_scale=1.5, **fields)
    parts = by_part(net)
    for part, tensors in parts.items():
        expected = 0.02
        projection, inputs = part.split(".")[-2], tensors[0].shape[-1]
        if projection in ("q_proj", "k_proj", "noise_q_proj", "noise_k_proj", "k_rope_proj"):
            expected = inputs**-0.5
        elif projection == "v_proj":
            expected = 0.02 * (128 / inputs) ** 0.5
        elif part == "self_attn.o_proj.weight":
            scale = net.model.attention_layers[0].output_scale(normed_rms(net.config))
            expected = 0.02 * 1.5 / 6**0.5 * scale
        if part.endswith("_proj.weight"):
            assert std(tensors) == pytest.approx(expected, rel=0.1), part
    assert ("self_attn.norm.gain" in parts) == (name in WITH_HEAD_NORM)
    for layer in net.model.attention_layers if name in WITH_HEAD_NORM else []:
        effective = layer.norm.gain * layer.norm.factor * layer.norm.live**0.5
        assert torch.allclose(effective, torch.full_like(effective, 0.2 * 0.02 * 128**0.5))
    for part in ("input_layernorm.weight", "post_attention_layernorm.weight"):
        assert all((t == 1).all() for t in parts[part])
    assert std([net.model.embed_tokens.weight[1:]]) == pytest.approx(0.02, rel=0.1)
    assert output_std(net.config) == pytest.approx(0.02 * 1.5 / 6**0.5)
    assert normed_rms(net.config) == pytest.approx(0.2 * 0.02 * 128**0.5)


def test_attention_logits_start_with_unit_variance():
    net = AntiphaseForCausalLM(preset("nano", "standard"))
    x = torch.randn(2, 200, 128)
    layer = net.model.attention_layers[0]
    q, k = (p(x).unflatten(-1, (-1, 32)).transpose(1, 2) for p in (layer.q_proj, layer.k_proj))
    assert (q @ k.mT / 32**0.5).std().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("head_norm", ["scalar", "none"])
def test_only_rms_head_norms_start_below_one(head_norm):
    net = model("diff_v1", attention_options={"head_norm": head_norm})
    gains = [p for name, p in net.named_parameters() if name.endswith("self_attn.norm.gain")]
    assert len(gains) == (2 if head_norm == "scalar" else 0)
    assert all((gain == 1).all() for gain in gains)


@each
def test_the_branch_scale_multiplies_the_output_projection_and_nothing_else(name):
    one, two = (model(name, branch_scale=scale).state_dict() for scale in (1.0, 2.0))
    for n in one:
        branch = n.endswith("o_proj.weight")
        torch.testing.assert_close(two[n], one[n] * (2 if branch else 1), msg=n)
    first, second = (
        branch_rms(model(name, branch_scale=scale), token_ids())[0] for scale in (1.0, 2.0)
    )
    assert second.attention == pytest.approx(2 * first.attention, rel=1e-4)


@each
def test_query_key_std_is_that_of_queries_and_keys_and_nothing_else(name):
    one, two = (model(name, query_key_std=std).state_dict() for std in (0.02, 0.03))
    for n in one:
        part = n.split(".")[-2]
        factor = 1.5 if part in QUERIES_AND_KEYS and n.endswith("weight") else 1
        torch.testing.assert_close(two[n], one[n] * factor, msg=n)
        if factor != 1:
            assert one[n].std().item() == pytest.approx(0.02, rel=0.1)


@each
@pytest.mark.parametrize("initialisation", ["scaled", "published"])
def test_a_seed_determines_the_weights(name, initialisation):
    one, two = (model(name, initialisation=initialisation).state_dict() for _ in range(2))
    assert all(torch.equal(one[n], two[n]) for n in one)
    torch.manual_seed(1)
    other = AntiphaseForCausalLM(config(name, initialisation=initialisation)).state_dict()
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_weights_that_a_model_has_are_not_initialised_again():
    net = model("diff_v1")
    before = {n: t.clone() for n, t in net.state_dict().items()}
    net.init_weights()
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"branch_scale": 0}, "branch_scale: got 0, expected a number above 0"),
        ({"branch_scale": -1.0}, "branch_scale: got -1.0, expected a number above 0"),
        ({"branch_scale": float("nan")}, "branch_scale: got nan, expected a number above 0"),
        ({"branch_scale": float("inf")}, "branch_scale: got inf, expected a number above 0"),
        (
            {"branch_scale": 2.0, "initialisation": "published"},
            "branch_scale: got 2.0, but the published .* use initialisation='scaled' or leave",
        ),
        ({"query_key_std": 0.0}, "query_key_std: got 0.0, expected a number above 0, or None"),
        ({"query_key_std": float("nan")}, "query_key_std: got nan, expected a number above 0"),
        (
            {"query_key_std": 0.02, "initialisation": "published"},
            "query_key_std: got 0.02, but the published .* or leave query_key_std out",
        ),
        (
            {"initialisation": "publishd"},
            "initialisation: got 'publishd', allowed are scaled, published.*mean 'published'",
        ),
        ({"initialization": "scaled"}, "no field 'initialization'; did you mean 'initialisation'"),
    ],
)
def test_invalid_fields_say_what_to_change(fields, message):
    with pytest.raises(ValueError, match=message):
        config("diff_v1", **fields)


def without_fields(folder) -> None:
    """Make a saved model one of before the two fields existed."""
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    del fields["initialisation"], fields["branch_scale"]
    path.write_text(json.dumps(fields))


@each
@torch.no_grad()
def test_a_checkpoint_without_the_fields_loads_as_published_bit_by_bit(name, tmp_path):
    net = model(name, initialisation="published")
    net.save_pretrained(tmp_path)
    without_fields(tmp_path)
    torch.manual_seed(5)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (loaded.config.initialisation, loaded.config.branch_scale) == ("published", 1.0)
    found, expected = loaded.state_dict(), net.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], expected[n]) for n in found)
    assert torch.equal(loaded(token_ids()).logits, net(token_ids()).logits)
    loaded.save_pretrained(tmp_path / "again")
    again = AntiphaseConfig.from_pretrained(tmp_path / "again")
    assert again.initialisation == "published"


def test_a_loaded_config_can_be_changed_to_the_scaled_start(tmp_path):
    config("diff_v1", initialisation="published").save_pretrained(tmp_path)
    without_fields(tmp_path)
    changed = AntiphaseConfig.from_pretrained(tmp_path, initialisation="scaled", branch_scale=2.0)
    assert (changed.initialisation, changed.branch_scale) == ("scaled", 2.0)


@pytest.mark.parametrize(
    "fields",
    [{}, {"branch_scale": 0.5}, {"query_key_std": 0.02}, {"initialisation": "published"}],
    ids=["default", "scale", "queries and keys", "published"],
)
def test_saving_keeps_the_fields_and_the_weights(fields, tmp_path):
    net = model("diff_v1", **fields)
    net.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    defaults = {"initialisation": "scaled", "branch_scale": 1.0, "query_key_std": None}
    for name, default in defaults.items():
        assert json.loads((tmp_path / "config.json").read_text())[name] == fields.get(name, default)
        assert getattr(loaded.config, name) == fields.get(name, default)
    found = loaded.state_dict()
    assert all(torch.equal(found[n], t) for n, t in net.state_dict().items())


@pytest.mark.parametrize("initialisation", ["scaled", "published"])
def test_missing_parameters_start_as_in_a_new_model(initialisation, tmp_path):
    net = model("diff_v1", initialisation=initialisation)
    saved = {n: torch.full_like(t, 3.0) for n, t in net.state_dict().items()}
    parts = ("q_proj.weight", "o_proj.weight", "norm.gain", "down_proj.weight")
    lost = {"lm_head.weight", *(f"model.layers.1.{p}" for p in by_part(net) if p.endswith(parts))}
    assert len(lost) == 5
    net.save_pretrained(tmp_path, state_dict={n: t for n, t in saved.items() if n not in lost})
    torch.manual_seed(0)
    loaded = type(net).from_pretrained(tmp_path).state_dict()
    for n, fresh in net.state_dict().items():
        if n not in lost:
            assert (loaded[n] == 3).all(), n
        elif n.endswith("gain"):
            assert torch.equal(loaded[n], fresh), n
        else:
            assert std([loaded[n]]) == pytest.approx(std([fresh]), rel=0.1), n


@pytest.mark.parametrize("initialisation", ["scaled", "published"])
def test_a_new_head_and_new_tokens_start_at_initializer_range_and_change_nothing_else(
    initialisation, tmp_path
):
    net = model("diff_v1", initialisation=initialisation)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(3.0)  # no initialisation gives it
    net.save_pretrained(tmp_path)
    classifier = AntiphaseForSequenceClassification.from_pretrained(tmp_path, num_labels=20)
    found = classifier.state_dict()
    assert std([found.pop("score.weight")]) == pytest.approx(0.1, rel=0.1)
    assert all((t == 3).all() for t in found.values())
    net.resize_token_embeddings(VOCABULARY + 100, mean_resizing=False)
    for name, t in net.state_dict().items():
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            assert std([t[VOCABULARY:]]) == pytest.approx(0.1, rel=0.1), name
            t = t[:VOCABULARY]
        assert (t == 3).all(), name
