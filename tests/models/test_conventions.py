"""What Hugging Face expects of a causal language model, in the manner of its own model tests.

`ModelTester` makes a configuration and inputs; every test runs for each mechanism in `NAMES`. The
heads of a mechanism may be fewer than the configuration's: its `head_counts` say how many.
"""

import copy
import re

import pytest
import torch
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache

from antiphase.models import (
    AntiphaseConfig,
    AntiphaseForCausalLM,
    AntiphaseForQuestionAnswering,
    AntiphaseForSequenceClassification,
    AntiphaseForTokenClassification,
    AntiphaseModel,
)

NAMES = ["standard", "diff_v1", "diff_v2", "low_rank_noise"]
RUNNING = ("low_rank_noise",)  # keep a running state: no assistant, no static cache
each = pytest.mark.parametrize("name", NAMES)
pytestmark = pytest.mark.filterwarnings("ignore:.*use_return_dict.*")


class ModelTester:
    """Configuration, inputs and models of one mechanism."""

    batch_size, seq_length, vocab_size, num_labels = 3, 7, 99, 3
    num_hidden_layers = 2

    def __init__(self, name: str) -> None:
        self.name = name
        generator = torch.Generator().manual_seed(7)
        shape = (self.batch_size, self.seq_length)
        self.input_ids = torch.randint(3, self.vocab_size, shape, generator=generator)
        self.attention_mask = torch.ones(shape, dtype=torch.long)
        self.attention_mask[1, :3] = 0  # padding on the left

    def config(self, **fields: object) -> AntiphaseConfig:
        sizes: dict[str, object] = {
            "attention": self.name,
            "vocab_size": self.vocab_size,
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "initializer_range": 0.1,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "num_labels": self.num_labels,
        }
        return AntiphaseConfig(**{**sizes, **fields})

    def model(self, kind=AntiphaseForCausalLM, implementation=None, **fields):
        torch.manual_seed(0)
        config = self.config(**fields)
        return kind._from_config(config, attn_implementation=implementation).eval()

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask}

    @property
    def heads(self) -> int:
        return self.config().attention_layer().head_counts["heads"]


@pytest.fixture
def tester(name):
    return ModelTester(name)


HEADS = [
    (AntiphaseModel, {}, (3, 7, 32)),
    (AntiphaseForCausalLM, {"labels": (3, 7)}, (3, 7, 99)),
    (AntiphaseForSequenceClassification, {"labels": (3,)}, (3, 3)),
    (AntiphaseForTokenClassification, {"labels": (3, 7)}, (3, 7, 3)),
    (AntiphaseForQuestionAnswering, {"start_positions": (3,), "end_positions": (3,)}, (3, 7)),
]


@each
@pytest.mark.parametrize(
    ("kind", "labels", "shape"), HEADS, ids=lambda h: getattr(h, "__name__", "")
)
def test_forward_and_training_of_every_head(tester, kind, labels, shape):
    net = tester.model(kind).train()
    given = {name: torch.randint(0, 3, size) for name, size in labels.items()}
    out = net(**tester.inputs, **given)
    first = {AntiphaseModel: "last_hidden_state", AntiphaseForQuestionAnswering: "start_logits"}
    assert out[first.get(kind, "logits")].shape == shape
    loss = out.loss if given else out.last_hidden_state.square().mean()
    loss.backward()
    missing = [n for n, p in net.named_parameters() if p.grad is None]
    assert not missing


@each
@torch.no_grad()
def test_forward_variants_agree(tester):
    net = tester.model()
    want = net(**tester.inputs).logits
    embedded = net.get_input_embeddings()(tester.input_ids)
    for got in (
        net(**tester.inputs, return_dict=False)[0],
        net(**tester.inputs, use_cache=False).logits,
        net(inputs_embeds=embedded, attention_mask=tester.attention_mask).logits,
        net(tester.input_ids, attention_mask=tester.attention_mask.bool()).logits,
        net(**tester.inputs, output_attentions=True, output_hidden_states=True).logits,
    ):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(net(**tester.inputs, logits_to_keep=1).logits, want[:, -1:])
    cache = DynamicCache(config=net.config)
    mask = tester.attention_mask
    net(tester.input_ids[:, :4], attention_mask=mask[:, :4], past_key_values=cache)
    rest = net(tester.input_ids[:, 4:], attention_mask=mask, past_key_values=cache).logits
    torch.testing.assert_close(rest, want[:, 4:], atol=1e-5, rtol=1e-4)


@each
def test_attention_outputs(tester):
    for implementation in ("eager", "auto"):
        net = tester.model(implementation=implementation)
        assert net.config._attn_implementation == implementation
        attentions = net(**tester.inputs, output_attentions=True).attentions
        shapes = [tuple(a.shape) for a in attentions]
        assert shapes == [(3, tester.heads, 7, 7)] * tester.num_hidden_layers
    assert net(**tester.inputs).attentions is None


@each
@torch.no_grad()
def test_attentions_of_a_saved_configuration(tester, tmp_path):
    net = tester.model(implementation="eager")
    net.config.output_attentions = True
    net.save_pretrained(tmp_path)
    loaded = AntiphaseForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert loaded.config.output_attentions
    out = loaded(**tester.inputs)
    assert len(out.attentions) == tester.num_hidden_layers
    torch.testing.assert_close(out.logits, net(**tester.inputs).logits)


@each
@pytest.mark.parametrize("implementation", ["eager", "auto"])
def test_gradients_of_hidden_states_and_attentions(tester, implementation):
    net = tester.model(AntiphaseModel, implementation)
    out = net(**tester.inputs, output_attentions=True, output_hidden_states=True)
    assert len(out.hidden_states) == tester.num_hidden_layers + 1
    for tensor in (*out.hidden_states, *out.attentions):
        tensor.retain_grad()
    out.last_hidden_state.square().sum().backward()
    for tensor in (*out.hidden_states, *out.attentions):
        assert tensor.grad.abs().sum() > 0
    plain = tester.model(AntiphaseModel, implementation)
    plain(**tester.inputs).last_hidden_state.square().sum().backward()
    for (n, p), q in zip(net.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-4, rtol=1e-3, msg=n)


@each
@torch.no_grad()
def test_the_implementation_is_set_dynamically(tester):
    net = tester.model(implementation="eager")
    want = net(**tester.inputs).logits
    for implementation in ("sdpa", "auto", "eager"):
        net.set_attn_implementation(implementation)
        configs = (net.config, net.model.config)
        assert {c._attn_implementation for c in configs} == {implementation}
        torch.testing.assert_close(net(**tester.inputs).logits, want, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match='Specified `attn_implementation="foo"` is not supported'):
        net.set_attn_implementation("foo")
    assert net.config._attn_implementation == "eager"


@each
@torch.no_grad()
def test_save_and_load(tester, tmp_path):
    net = tester.model()
    net.generation_config = GenerationConfig(do_sample=True, top_k=7)
    net.save_pretrained(tmp_path)
    loaded, report = AntiphaseForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert loaded.generation_config.top_k == 7
    assert torch.equal(loaded(**tester.inputs).logits, net(**tester.inputs).logits)
    again = tester.model()
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(**tester.inputs).logits, net(**tester.inputs).logits)
    copied = copy.deepcopy(net)
    assert torch.equal(copied(**tester.inputs).logits, net(**tester.inputs).logits)


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_patterns_of_fp32_modules_match_what_stays_in_fp32(tester, dtype, tmp_path):
    tester.model().save_pretrained(tmp_path)
    net = AntiphaseForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    patterns = [re.compile(rf"(?:^|\.){p}(?:\.|$)") for p in net._keep_in_fp32_modules_strict]
    state = net.state_dict()
    for pattern in patterns:
        assert any(pattern.search(n) for n in state), pattern
    for n, tensor in state.items():
        wide = any(pattern.search(n) for pattern in patterns)
        assert tensor.dtype == (torch.float32 if wide else dtype), n
    assert bool(patterns) == (tester.name in ("diff_v1", "low_rank_noise"))


@each
@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_embeddings_are_resized(tester, tied):
    net = tester.model(tie_word_embeddings=tied)
    want = net(**tester.inputs).logits
    net.resize_token_embeddings(tester.vocab_size + 11)
    assert net.config.vocab_size == net.get_input_embeddings().num_embeddings == 110
    logits = net(**tester.inputs).logits
    assert logits.shape[-1] == 110
    torch.testing.assert_close(logits[..., :99], want)
    net.resize_token_embeddings(50, pad_to_multiple_of=8)
    assert net.get_output_embeddings().weight.shape == (56, 32)
    assert (net.lm_head.weight is net.model.embed_tokens.weight) == tied


@each
def test_tied_weights_are_saved_once_and_trained_together(tester, tmp_path):
    net = tester.model(tie_word_embeddings=True)
    assert "lm_head.weight" not in dict(net.named_parameters())
    net.save_pretrained(tmp_path)
    loaded = AntiphaseForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    loaded(**tester.inputs, labels=tester.input_ids).loss.backward()
    with torch.no_grad():
        loaded.lm_head.weight.sub_(loaded.lm_head.weight.grad)
    assert torch.equal(loaded.model.embed_tokens.weight, loaded.lm_head.weight)


@each
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(tester, reentrant):
    found = []
    for checkpointing in (False, True):
        net = tester.model().train()
        if checkpointing:
            net.gradient_checkpointing_enable({"use_reentrant": reentrant})
            assert net.is_gradient_checkpointing
            if reentrant:
                net.enable_input_require_grads()
        net(**tester.inputs, labels=tester.input_ids, use_cache=False).loss.backward()
        found.append({n: p.grad for n, p in net.named_parameters()})
    torch.testing.assert_close(*found)


def expected_greedy(net, inputs, steps: int) -> torch.Tensor:
    """Return `steps` greedy tokens after the inputs, each from a forward pass without a cache."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    for _ in range(steps):
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        out = net(ids, attention_mask=mask, position_ids=positions, use_cache=False)
        new = out.logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, new], 1)
        mask = torch.cat([mask, torch.ones_like(new)], 1)
    return ids


@each
@torch.no_grad()
def test_greedy_generation_and_its_outputs(tester):
    net = tester.model()
    want = expected_greedy(net, tester.inputs, 5)
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    out = net.generate(
        **tester.inputs,
        **options,
        return_dict_in_generate=True,
        output_logits=True,
        output_hidden_states=True,
    )
    assert torch.equal(out.sequences, want)
    assert len(out.logits) == len(out.hidden_states) == 5
    assert torch.equal(torch.stack(out.logits, 1).argmax(-1), want[:, 7:])
    assert out.past_key_values.get_seq_length() == 11
    assert torch.equal(net.generate(**tester.inputs, **options, use_cache=False), want)
    embedded = net.get_input_embeddings()(tester.input_ids)
    mask = tester.attention_mask
    got = net.generate(inputs_embeds=embedded, attention_mask=mask, **options)
    assert torch.equal(got, want[:, 7:])


@each
@torch.no_grad()
def test_attentions_while_generating(tester):
    net = tester.model()
    options = {"max_new_tokens": 3, "eos_token_id": None, "return_dict_in_generate": True}
    if tester.name in RUNNING:  # the noise keys of earlier tokens are gone
        with pytest.raises(ValueError, match="without a cache"):
            net.generate(**tester.inputs, **options, output_attentions=True)
        return
    out = net.generate(**tester.inputs, **options, output_attentions=True)
    shapes = [tuple(step[0].shape) for step in out.attentions]
    assert shapes == [(3, tester.heads, 7, 7), (3, tester.heads, 1, 8), (3, tester.heads, 1, 9)]


@each
@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "top_k": 20},
        {"num_beams": 3},
        {"num_beams": 3, "num_return_sequences": 2},
        {"num_beams": 2, "do_sample": True},
    ],
    ids=["sample", "beam", "beams returned", "beam sample"],
)
@torch.no_grad()
def test_other_ways_to_generate_give_the_same_with_and_without_a_cache(tester, options):
    net, found = tester.model(), []
    for use_cache in (True, False):
        torch.manual_seed(3)
        found.append(
            net.generate(
                **tester.inputs, max_new_tokens=5, eos_token_id=None, use_cache=use_cache, **options
            )
        )
    assert torch.equal(*found)
    assert found[0].shape == (3 * options.get("num_return_sequences", 1), 12)


@each
@torch.no_grad()
def test_generation_continues_from_a_cache(tester):
    net, ids = tester.model(), tester.input_ids
    options = {"do_sample": False, "eos_token_id": None}
    want = net.generate(ids, max_new_tokens=6, **options)
    first = net.generate(ids, max_new_tokens=3, return_dict_in_generate=True, **options)
    cache = first.past_key_values
    got = net.generate(first.sequences, past_key_values=cache, max_new_tokens=3, **options)
    assert torch.equal(got, want)


@each
@torch.no_grad()
def test_assisted_decoding_gives_the_greedy_tokens(tester):
    net, ids = tester.model(), tester.input_ids[:1]
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    assistant = tester.model()
    torch.manual_seed(5)
    assistant.lm_head.weight.add_(0.05 * torch.randn_like(assistant.lm_head.weight))
    ways = [{"assistant_model": assistant}, {"prompt_lookup_num_tokens": 2}]
    if tester.name in RUNNING:
        for way in ways:
            with pytest.raises(ValueError, match="stateful"):
                net.generate(ids, **options, **way)
        return
    want = net.generate(ids, **options)
    for way in ways:
        assert torch.equal(net.generate(ids, **options, **way), want)


@each
@pytest.mark.parametrize("implementation", ["auto", "eager"])
@torch.no_grad()
def test_a_static_cache_gives_the_greedy_tokens(tester, implementation):
    net = tester.model(implementation=implementation)
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    static = {"cache_implementation": "static", "disable_compile": True}
    if tester.name in RUNNING:
        with pytest.raises(ValueError, match="static"):
            net.generate(**tester.inputs, **options, **static)
        return
    want = net.generate(**tester.inputs, **options)
    assert torch.equal(net.generate(**tester.inputs, **options, **static), want)
