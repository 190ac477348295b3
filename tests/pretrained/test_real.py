"""SmolLM2-135M itself: equal at step 0, equal when folded, its adapter back, its heads the same."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphase.models.gguf import _gguf, plain, smollm2
from antiphase.pretrained import DexConfig, UnchainedModel, fold, to_differential, unchain
from antiphase.pretrained.dex import operators
from antiphase.tasks import Language

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base():
    return AutoModelForCausalLM.from_pretrained(smollm2()).eval()


@pytest.fixture(scope="module")
def ids():
    data = Language(split="validation", size=2, length=128, tokenizer=str(smollm2()))
    return torch.stack([data[i]["input_ids"] for i in range(2)])


@torch.no_grad()
def test_the_complete_path_keeps_its_logits(base, ids, tmp_path):
    expected = base(ids).logits
    unchained = unchain(copy.deepcopy(base), DexConfig(anneal=10), calibration=ids)
    again = unchain(copy.deepcopy(base), DexConfig(anneal=10), calibration=ids)
    assert unchained.dex_config.heads == again.dex_config.heads
    assert all(len(heads) == 4 for heads in unchained.dex_config.heads)  # half of nine
    assert torch.equal(unchained(ids).logits, expected)
    unchained.step = 20
    for operator in operators(unchained).values():
        operator.lam.learn.fill_(0.3)
    moved = unchained(ids).logits
    assert float((moved - expected).abs().max()) > 0.1
    unchained.save_pretrained(tmp_path)
    loaded = UnchainedModel.from_pretrained(copy.deepcopy(base), tmp_path)
    assert torch.equal(loaded(ids).logits, moved)
    folded = fold(loaded)
    assert type(folded) is type(base)
    far = (folded(ids).logits - moved).abs().max() / moved.abs().max()
    assert float(far) < 1e-4


def test_a_gguf_model_has_to_be_made_plain_first(ids):
    source = _gguf()
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
    with pytest.raises(ValueError, match=r"is quantised \(gguf\).*plain\(model\) first"):
        unchain(read, calibration=ids)
    unchained = unchain(plain(read), calibration=ids)
    with torch.no_grad():
        assert torch.equal(unchained(ids).logits, read(ids).logits)


@torch.no_grad()
def test_as_a_differential_model_it_generates_the_same(base, ids):
    ours = to_differential(base)
    expected = base(ids).logits
    far = (ours(ids).logits - expected).abs().max() / expected.abs().max()
    assert float(far) < 1e-4
    tokenizer = AutoTokenizer.from_pretrained(smollm2())
    prompt = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    found = [m.generate(prompt, max_new_tokens=8, do_sample=False).tolist() for m in (base, ours)]
    assert found[0] == found[1]
