"""PEFT on our models: methods find their target modules, and why DEX is not one of its methods."""

import pytest
import torch

from tests.models.tiny import model, token_ids

peft = pytest.importorskip("peft")

METHODS = {
    "lora": (lambda: peft.LoraConfig(r=4, init_lora_weights=False), {"q_proj", "v_proj"}),
    "ia3": (peft.IA3Config, {"k_proj", "v_proj", "down_proj"}),
    "all-linear": (
        lambda: peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False),
        {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    ),
}


@pytest.mark.parametrize("name", ["standard", "diff_v1", "diff_v2", "low_rank_noise"])
@pytest.mark.parametrize("method", METHODS)
def test_target_modules_are_known_and_merging_keeps_the_function(name, method, tmp_path):
    config, expected = METHODS[method]
    net, ids = model(name), token_ids()
    tuned = peft.get_peft_model(net, config())
    found = {n.rsplit(".", 1)[-1] for n in tuned.base_model.targeted_module_names}
    assert expected <= found
    tuned(ids, labels=ids).loss.backward()
    trained = [p for p in tuned.parameters() if p.requires_grad]
    assert trained
    assert all(p.grad is not None for p in trained)
    tuned.eval()
    with torch.no_grad():
        want = tuned(ids).logits
        tuned.save_pretrained(tmp_path)
        loaded = peft.PeftModel.from_pretrained(model(name), tmp_path).eval()
        torch.testing.assert_close(loaded(ids).logits, want, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(tuned.merge_and_unload()(ids).logits, want, atol=1e-4, rtol=1e-3)


def test_peft_takes_no_method_from_outside():
    """If this fails, PEFT's list of methods is open: make DEX one of them."""
    with pytest.raises(ValueError, match="Unknown PEFT type DEX"):
        peft.utils.register_peft_method(name="dex", config_cls=object, model_cls=object)
