"""Packed sequences: documents in one row give what each gives alone, for every mechanism."""

import copy
import itertools

import pytest
import torch
from transformers import DataCollatorWithFlattening
from transformers.cache_utils import DynamicCache, StaticCache

from tests.attention.cases import INDEPENDENT
from tests.models.tiny import VOCABULARY, left_padded, model, token_ids

each_independent = pytest.mark.parametrize("name", INDEPENDENT)
LENGTHS = [5, 1, 9, 33, 2]
COLLATORS = {
    "positions": {},
    "positions and lengths": {"return_flash_attn_kwargs": True, "return_seq_idx": True},
    "lengths alone": {"return_flash_attn_kwargs": True, "return_position_ids": False},
    "ids alone": {"return_seq_idx": True, "return_position_ids": False},
}


def documents() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(1, VOCABULARY, (n,), generator=generator) for n in LENGTHS]


def flattened(kind: str = "positions") -> dict:
    """Return the documents as one row, as transformers' collator makes it."""
    collate = DataCollatorWithFlattening(**COLLATORS[kind], return_tensors="pt")
    return collate([{"input_ids": ids.tolist()} for ids in documents()])


def gradients(net, loss) -> torch.Tensor:
    parameters = [p for p in net.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


def mean_loss(logits, labels) -> torch.Tensor:
    """Return the loss as the model has it, but in fp64."""
    return torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:])


def separately(net) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and the gradients of the mean loss, one document at a time."""
    logits = [net(ids[None], use_cache=False).logits[0] for ids in documents()]
    loss = sum(
        torch.nn.functional.cross_entropy(one[:-1], ids[1:], reduction="sum")
        for one, ids in zip(logits, documents(), strict=True)
    )
    predicted = sum(LENGTHS) - len(LENGTHS)
    return torch.cat(logits).detach(), gradients(net, loss / predicted)


def check_against_separate(net, batch, **options) -> None:
    want, want_gradients = separately(net)
    out = net(**batch, **options)
    torch.testing.assert_close(out.logits[0], want, atol=1e-9, rtol=1e-9)
    loss = mean_loss(out.logits, batch["labels"])
    torch.testing.assert_close(out.loss.double(), loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients(net, loss), want_gradients, atol=1e-9, rtol=1e-9)


@each_independent
@pytest.mark.parametrize("use_cache", [False, True], ids=["no cache", "cache"])
def test_packed_is_separate_in_logits_and_gradients(name, use_cache):
    net = model(name).double()
    for kind in COLLATORS:
        check_against_separate(net, flattened(kind), use_cache=use_cache)


@each_independent
@pytest.mark.parametrize("packing", [False, True], ids=["padding_free", "packing"])
def test_the_collator_of_trl(name, packing):
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    rows = [{"input_ids": ids.tolist()} for ids in documents()]
    if packing:  # what `packing=True` makes of a data set
        joined = list(itertools.chain(*(row["input_ids"] for row in rows)))
        rows = [{"input_ids": joined, "seq_lengths": LENGTHS}]
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    check_against_separate(model(name).double(), collate(rows))


def test_a_step_of_trl_with_packing(tmp_path):
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1")
    net, calls = model("diff_v1"), []
    net.model.register_forward_hook(  # TRL replaces the head
        lambda net, args, batch, out: calls.append((batch, out)), with_kwargs=True
    )
    options = {"max_steps": 1, "use_cpu": True, "bf16": False, "save_strategy": "no"}
    SFTTrainer(
        copy.deepcopy(net),
        args=SFTConfig(str(tmp_path), packing=True, max_length=64, report_to=[], **options),
        train_dataset=Dataset.from_list([{"input_ids": ids.tolist()} for ids in documents()]),
        processing_class=tokenizer,
    ).train()
    batch, out = calls[0]
    begins = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
    assert sorted(LENGTHS) == sorted(b - a for a, b in itertools.pairwise([*begins, 50]))
    for ids, found in zip(
        batch["input_ids"][0].tensor_split(begins[1:]),
        out.last_hidden_state[0].tensor_split(begins[1:]),
        strict=True,
    ):
        alone = net.model(ids[None]).last_hidden_state[0]
        torch.testing.assert_close(found, alone, atol=2e-5, rtol=1e-4)


@each_independent
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "fused_cpu"])
@torch.no_grad()
def test_every_backend_keeps_documents_apart(name, backend):
    net = model(name)
    net.set_attn_implementation(backend)
    got = net(**flattened()).logits[0]
    want = torch.cat([net(ids[None]).logits[0] for ids in documents()])
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


@each_independent
@torch.no_grad()
def test_a_packed_prompt_is_continued_and_followed_by_new_documents(name):
    """Chunks of any length through one cache: the last document goes on, or another begins."""
    net = model(name).double()
    batch = flattened()
    ids, positions = batch["input_ids"], batch["position_ids"]
    want = net(ids, position_ids=positions, use_cache=False).logits
    for ends in ([50], [*range(1, 51)], [3, 5, 20, 21, 49, 50], [6, 48, 50]):
        cache, start, found = DynamicCache(config=net.config), 0, []
        for end in ends:
            now = slice(start, end)
            out = net(ids[:, now], position_ids=positions[:, now], past_key_values=cache)
            found.append(out.logits)
            start = end
        torch.testing.assert_close(torch.cat(found, 1), want, atol=1e-9, rtol=1e-9)


@each_independent
@torch.no_grad()
def test_decoding_after_a_packed_prompt(name):
    net = model(name).double()
    cache = DynamicCache(config=net.config)
    net(**flattened(), past_key_values=cache)
    alone = documents()[-1][None]
    for token in (7, 8, 9):  # without positions: they continue the last document
        new = torch.tensor([[token]])
        alone = torch.cat([alone, new], 1)
        got = net(new, past_key_values=cache).logits
        want = net(alone, use_cache=False).logits[:, -1:]
        torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)


@each_independent
@torch.no_grad()
def test_rows_with_different_documents_and_padding(name):
    net = model(name).double()
    ids = token_ids(2, 14)
    positions = torch.tensor(
        [[*range(4), *range(7), 0, 0, 0], [0, 0, 0, 0, *range(3), *range(6), 6]]
    )
    mask = torch.tensor([[1] * 11 + [0] * 3, [0] * 4 + [1] * 10])
    got = net(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    for row, begin, end in ((0, 0, 4), (0, 4, 11), (1, 4, 7), (1, 7, 14)):
        alone = net(ids[row : row + 1, begin:end], use_cache=False).logits[0]
        torch.testing.assert_close(got[row, begin:end], alone, atol=1e-9, rtol=1e-9)
    ones = torch.ones(1, 14, dtype=torch.long)
    kept = net(ids[:1], attention_mask=ones, position_ids=positions[:1], use_cache=False).logits
    torch.testing.assert_close(kept[0, :11], got[0, :11], atol=1e-9, rtol=1e-9)


@each_independent
def test_no_gradient_crosses_a_boundary(name):
    net, batch = model(name), flattened()
    x = net.model.embed_tokens(batch["input_ids"]).detach().requires_grad_()
    logits = net(inputs_embeds=x, position_ids=batch["position_ids"]).logits
    (gradient,) = torch.autograd.grad(logits[0, 6:15].square().sum(), x)
    assert (gradient[0, :6] == 0).all()
    assert (gradient[0, 15:] == 0).all()
    assert (gradient[0, 6:15].abs().sum(-1) > 0).all()


@each_independent
@torch.no_grad()
def test_sinusoidal_positions_restart_with_every_document(name):
    net = model(name, position="sinusoidal").double()
    want = torch.cat([net(ids[None], use_cache=False).logits[0] for ids in documents()])
    for kind in COLLATORS:
        got = net(**flattened(kind)).logits[0]
        torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ["diff_v1", "fixed_noise"])
def test_a_compiled_model_keeps_documents_apart(name):
    torch._dynamo.reset()
    net, batch = model(name), flattened()
    inputs = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"]}
    want = net(**inputs, use_cache=False).logits
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    got = compiled(**inputs, use_cache=False).logits
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_padding_starts_no_document():
    """`generate` gives padding the position 0; tokens may count padding between them or not."""
    net = model("diff_v1")
    ids, mask = left_padded(token_ids(), [19, 11, 5])
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    cache = DynamicCache(config=net.config)
    net(ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
    assert not hasattr(cache, "antiphase_documents")  # the fast path, without documents
    mask[0, 5:8] = 0
    for middle in (mask.cumsum(1) - 1, torch.arange(19).expand(3, 19)):
        cache = DynamicCache(config=net.config)
        net(ids, attention_mask=mask, position_ids=middle, past_key_values=cache)
        assert not hasattr(cache, "antiphase_documents")


@torch.no_grad()
def test_removed_tokens_take_their_documents_along():
    net, batch = model("diff_v1"), flattened()
    ids, positions = batch["input_ids"], batch["position_ids"]
    cache = DynamicCache(config=net.config)
    net(ids, position_ids=positions, past_key_values=cache)
    cache.crop(-9)  # into the fourth document
    now = slice(41, 50)
    got = net(ids[:, now], position_ids=positions[:, now], past_key_values=cache).logits
    want = net(ids, position_ids=positions, use_cache=False).logits[:, now]
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cu_seq_lens_q": torch.tensor([0, 3, 9])}, r"cu_seq_lens_q: got a batch of 2 sequences"),
        ({"seq_idx": torch.zeros(2, 5, dtype=torch.int32)}, r"seq_idx: got \(2, 5\), expected"),
    ],
)
def test_boundaries_that_do_not_fit_raise(fields, message):
    with pytest.raises(ValueError, match=message):
        model("diff_v1")(token_ids(2, 9), **fields)


@torch.no_grad()
def test_caches_that_cannot_hold_documents_raise():
    net, batch = model("diff_v1"), flattened()
    with pytest.raises(ValueError, match="a static cache does not know the documents"):
        net(**batch, past_key_values=StaticCache(config=net.config, max_cache_len=64))
    cache = DynamicCache(config=net.config)
    net(token_ids(2, 6), position_ids=torch.tensor([[0, 1, 0, 1, 2, 3]] * 2), past_key_values=cache)
    cache.batch_repeat_interleave(3)
    with pytest.raises(ValueError, match="batch of 6 sequences after 6 tokens does not continue"):
        net(token_ids(6, 1), past_key_values=cache)
