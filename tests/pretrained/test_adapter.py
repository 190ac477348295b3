"""The adapter as files: small, loaded exactly, rejected for another base model."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainingArguments

from antiphase.pretrained import DexConfig, UnchainedModel, unchain
from antiphase.pretrained.dex import operators
from antiphase.pretrained.structure import trainable
from antiphase.training import AdapterTrainer
from tests.pretrained.small import FAMILIES, made, sequences


@pytest.fixture
def saved(tmp_path):
    unchained = unchain(made("llama"), DexConfig(anneal=10), calibration=sequences())
    unchained.step = 7
    with torch.no_grad():
        for p in unchained.parameters():
            if p.requires_grad:
                p.add_(0.05 * torch.randn_like(p))
    unchained.save_pretrained(tmp_path / "adapter")
    return unchained, tmp_path / "adapter"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("train", ["kvo", "kv", "adapter"])
def test_an_adapter_comes_back_exactly(family, train, tmp_path):
    base, ids = made(family), sequences()
    unchained = unchain(copy.deepcopy(base), DexConfig(anneal=10, train=train), calibration=ids)
    optimizer = torch.optim.AdamW([p for p in unchained.parameters() if p.requires_grad], lr=1e-2)
    for step in range(20):
        unchained.step = step
        unchained(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    unchained.step = 20
    unchained.save_pretrained(tmp_path)
    again = UnchainedModel.from_pretrained(copy.deepcopy(base), tmp_path)
    with torch.no_grad():
        expected = unchained(ids).logits
        assert torch.equal(again(ids).logits, expected)
        assert not torch.allclose(base(ids).logits, expected, atol=1e-3)
        plain = again.merge_and_unload()
        torch.testing.assert_close(plain(ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert again.dex_config == unchained.dex_config
    plain.save_pretrained(tmp_path / "plain")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert type(loaded) is type(base)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, plain(ids).logits)


def test_an_adapter_of_version_0_1_loads(saved):
    """Its config calls `fraction` by the old name `share`, and has a sign."""
    unchained, folder = saved
    about = json.loads((folder / "adapter_config.json").read_text())
    del about["lam"]
    about["dex"] |= {"share": about["dex"].pop("fraction"), "sign": "-"}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    again = UnchainedModel.from_pretrained(made("llama"), folder)
    assert again.dex_config == unchained.dex_config
    about["dex"]["sign"] = "+"
    (folder / "adapter_config.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"sign: got '\+', an option that no longer exists"):
        UnchainedModel.from_pretrained(made("llama"), folder)


def test_it_is_used_like_the_model_itself(saved):
    unchained, _ = saved
    out = unchained.generate(sequences(1, 4), max_new_tokens=5, do_sample=False)
    assert out.shape == (1, 9)
    assert unchained.config.hidden_size == 32
    with pytest.raises(AttributeError):
        _ = unchained.nonsense


def test_only_the_adapter_is_saved(saved):
    unchained, folder = saved
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        p.name for p in folder.iterdir()
    }
    about = json.loads((folder / "adapter_config.json").read_text())
    assert about["step"] == 7
    assert about["dex"]["heads"] == unchained.dex_config.heads
    names = {name.split("self_attn.")[-1] for name in unchained.adapter_state()}
    assert names == {
        "k_proj.weight",
        "v_proj.weight",
        "o_proj.base_layer.weight",
        "o_proj.W_D",
        "o_proj.lam.learn",
    }


def test_another_base_is_rejected_with_both_shapes(saved):
    _, folder = saved
    other = made("llama", num_key_value_heads=1)
    before = {name: t.clone() for name, t in other.state_dict().items()}
    with pytest.raises(ValueError, match=r"\(16, 32\) \(of a LlamaForCausalLM\).*\(8, 32\)"):
        UnchainedModel.from_pretrained(other, folder)
    assert not operators(other)
    assert all(torch.equal(before[name], t) for name, t in other.state_dict().items())
    with pytest.raises(ValueError, match="num_hidden_layers is 2, here 3"):
        UnchainedModel.from_pretrained(made("llama", num_hidden_layers=3), folder)
    wide = made("llama", num_attention_heads=2, num_key_value_heads=1, head_dim=16)
    with pytest.raises(ValueError, match=r"W_D has shape \(8, 8\) .* has \(16, 16\)"):
        UnchainedModel.from_pretrained(wide, folder)


def test_the_same_shape_with_other_weights_is_another_base(saved, tmp_path):
    _, folder = saved
    with pytest.raises(ValueError, match=r"was made for a base whose q_proj is \[.*\], here \["):
        UnchainedModel.from_pretrained(made("llama", seed=1), folder)
    with pytest.raises(ValueError, match="whose class is LlamaForCausalLM, here MistralForCausal"):
        UnchainedModel.from_pretrained(made("mistral"), folder)
    UnchainedModel.from_pretrained(made("llama").bfloat16(), folder)  # the same, rounded
    small = unchain(made("llama"), DexConfig(heads="all", train="adapter"))
    small.save_pretrained(tmp_path / "small")
    wide = made("llama", hidden_size=64)
    with pytest.raises(ValueError, match="whose hidden_size is 32, here 64"):
        UnchainedModel.from_pretrained(wide, tmp_path / "small")
    assert all(p.requires_grad for p in wide.parameters())


def test_what_is_saved_does_not_depend_on_what_is_frozen(saved, tmp_path):
    unchained, _ = saved
    unchained.requires_grad_(False)
    unchained.save_pretrained(tmp_path / "frozen")
    again = UnchainedModel.from_pretrained(made("llama"), tmp_path / "frozen")
    with torch.no_grad():
        assert torch.equal(again(sequences()).logits, unchained(sequences()).logits)
        more = unchained.base_model.model.norm.weight.requires_grad_(True)
        more.mul_(1.5)
    unchained.save_pretrained(tmp_path / "more")
    again = UnchainedModel.from_pretrained(made("llama"), tmp_path / "more")
    with torch.no_grad():
        assert torch.equal(again(sequences()).logits, unchained(sequences()).logits)


def test_nothing_is_saved_that_cannot_be_loaded(saved, tmp_path):
    unchained, _ = saved
    with pytest.raises(ValueError, match=r"has DEX inside.*fold\(model\) and save that"):
        unchained.base_model.save_pretrained(tmp_path / "inner")
    with pytest.raises(ValueError, match="push the adapter's folder"):
        unchained.push_to_hub("me/mine")
    made("llama").save_pretrained(tmp_path / "base")
    with pytest.raises(ValueError, match=r"holds a model's config.json"):
        unchained.save_pretrained(tmp_path / "base")
    AutoModelForCausalLM.from_pretrained(tmp_path / "base")


def test_optimiser_steps_that_are_not_counted_cause_a_warning():
    unchained = unchain(made("llama").train(), DexConfig(heads="all"))
    optimizer = torch.optim.AdamW([p for p in unchained.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(2):
        unchained(sequences(), labels=sequences()).loss.backward()
        optimizer.step()
    with pytest.warns(UserWarning, match=r"model.step is still 0, so lam stays 0"):
        unchained(sequences(), labels=sequences())
    with pytest.raises(ValueError, match="step: got -1"):
        unchained.step = -1


@pytest.mark.parametrize(("of_lam", "of_W_D"), [(1.0, 1.0), (100.0, 1.0), (100.0, 10.0)])
def test_lam_and_W_D_have_learning_rates_of_their_own(of_lam, of_W_D, tmp_path):
    torch.manual_seed(0)
    factors = {"lam.learn": of_lam, "W_D": of_W_D}
    config = DexConfig(
        heads="all", anneal=4, train="kv", lam_lr_factor=of_lam, operation_lr_factor=of_W_D
    )
    unchained = unchain(made("llama"), config)
    before = {name: p.detach().clone() for name, p in trainable(unchained.base_model).items()}
    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=2,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    data = [{"input_ids": row, "labels": row} for row in sequences(16)]
    AdapterTrainer(model=unchained.base_model, args=arguments, train_dataset=data).train()
    for name, p in trainable(unchained.base_model).items():
        step = 1e-4 * next((f for end, f in factors.items() if name.endswith(end)), 1)
        moved = float((p.detach() - before[name]).abs().max())
        # at most one learning rate per step; W_D and lam have no gradient in the first
        assert 0.5 * step < moved < 2.1 * step, name


def test_the_trainer_counts_steps_and_resumes(tmp_path):
    """With tied embeddings, with which a complete state could not be saved."""
    data = [{"input_ids": row, "labels": row} for row in sequences(40)]
    ends = []
    for stops in ([6], [3, 6]):
        torch.manual_seed(0)
        model = made("llama", tie_word_embeddings=True)
        unchained = unchain(model, DexConfig(heads="all", anneal=3))
        for stop in stops:
            arguments = TrainingArguments(
                output_dir=str(tmp_path / str(len(stops))),
                max_steps=stop,
                per_device_train_batch_size=2,
                save_steps=3,
                lr_scheduler_type="constant",
                report_to="none",
                use_cpu=True,
                disable_tqdm=True,
            )
            trainer = AdapterTrainer(model=unchained.base_model, args=arguments, train_dataset=data)
            trainer.train(resume_from_checkpoint=stop != stops[0])
        assert unchained.step == 6
        ends.append(unchained.adapter_state())
    assert float(next(t for n, t in ends[0].items() if n.endswith("lam.learn"))) != 0
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_broken_files_are_named(saved):
    _, folder = saved
    weights = folder / "adapter_model.safetensors"
    complete = weights.read_bytes()
    weights.write_bytes(complete[:100])
    with pytest.raises(ValueError, match="holds no adapter that can be read"):
        UnchainedModel.from_pretrained(made("llama"), folder)
    weights.write_bytes(complete)
    config = folder / "adapter_config.json"
    about = json.loads(config.read_text())
    config.write_text(json.dumps(about | {"peft_type": "LORA"}))
    with pytest.raises(ValueError, match="holds a LORA adapter, not DEX"):
        UnchainedModel.from_pretrained(made("llama"), folder)
    config.write_text(json.dumps({"peft_type": "DEX"}))
    with pytest.raises(ValueError, match="is no DEX adapter's"):
        UnchainedModel.from_pretrained(made("llama"), folder)
    with pytest.raises(ValueError, match="holds no adapter"):
        UnchainedModel.from_pretrained(made("llama"), folder / "nowhere")


def test_transformers_reports_that_it_is_no_model(saved):
    """With PEFT installed, Auto classes read adapter_config.json, which PEFT does not know."""
    _, folder = saved
    with pytest.raises(ValueError, match=r"holds a DEX adapter.*UnchainedModel.from_pretrained"):
        AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.slow
def test_transformers_without_antiphase_names_the_kind_of_adapter(saved):
    _, folder = saved
    code = (
        "import sys; from transformers import AutoModelForCausalLM as A\n"
        "try: A.from_pretrained(sys.argv[1])\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert "antiphase-dex-adapter" in done.stdout  # without antiphase imported, its name at least
