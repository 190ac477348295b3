"""A saved model opens in any process: with the package imported, installed only, or missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
)

from antiphase.models import (
    AntiphaseConfig,
    AntiphaseForQuestionAnswering,
    AntiphaseForTokenClassification,
    AntiphaseSeq2SeqConfig,
    saved_code,
)
from tests.models.tiny import config, model, token_ids

ROOT = Path(__file__).parents[2]
NOT_INSTALLED = """
import sys
class Hide:
    def find_spec(self, name, *_):
        if name == "antiphase":
            raise ModuleNotFoundError("No module named 'antiphase'", name=name)
sys.meta_path.insert(0, Hide())
from transformers import AutoModel
"""
LOAD = "net = {auto}.from_pretrained({folder!r}{options}); print('loaded', type(net).__name__)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "net"
    model("diff_v2").save_pretrained(path)
    return str(path)


def run(code: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a new process, without a hub."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cache,
    )


@pytest.mark.parametrize(
    "imports",
    [
        "import antiphase\nfrom transformers import AutoModelForCausalLM",
        "from transformers import GenerationMixin, AutoModelForCausalLM\nimport antiphase",
    ],
    ids=["before", "after"],
)
def test_import_antiphase_is_enough(imports, folder, tmp_path):
    load = LOAD.format(auto="AutoModelForCausalLM", folder=folder, options="")
    done = run(f"{imports}\n{load}", tmp_path)
    assert "loaded AntiphaseForCausalLM" in done.stdout, done.stderr


def test_the_import_stays_light_beside_transformers(tmp_path):
    code = (
        "import antiphase, sys\nfrom transformers import AutoConfig\n"
        "print('light', 'antiphase' in sys.modules and 'antiphase.models' not in sys.modules)\n"
        "print('made', AutoConfig.for_model('antiphase', attention='standard').attention)\n"
        "made = AutoConfig.for_model('antiphase_seq2seq', cross_attention='linear')\n"
        "print('made', made.cross_attention, type(made).__name__)"
    )
    done = run(code, tmp_path)
    assert "light True" in done.stdout, done.stderr
    assert "made standard" in done.stdout, done.stderr
    assert "made linear AntiphaseSeq2SeqConfig" in done.stdout, done.stderr


@pytest.mark.parametrize("auto", ["AutoModelForCausalLM", "AutoModel"])
def test_trusted_code_finds_the_installed_package(auto, folder, tmp_path):
    load = LOAD.format(auto=auto, folder=folder, options=", trust_remote_code=True")
    again = "net.save_pretrained('again'); import os; print(*sorted(os.listdir('again')))"
    done = run(f"from transformers import {auto}\n{load}\n{again}", tmp_path)
    assert "loaded Antiphase" in done.stdout, done.stderr
    files = done.stdout.splitlines()[-1].split()
    assert "modeling_antiphase.py" in files
    assert "modeling.py" not in files
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert saved["auto_map"]["AutoModel"] == "modeling_antiphase.AntiphaseModel"


def test_the_saved_code_has_what_a_saved_config_names():
    for kind in (AntiphaseConfig, AntiphaseSeq2SeqConfig):
        assert kind.auto_classes["AutoConfig"] == kind.__name__
        assert {*kind.auto_classes.values()} <= {*saved_code.__all__}
        assert all(hasattr(saved_code, name) for name in kind.auto_classes.values())


def test_without_the_package_the_error_says_how_to_install_it(folder, tmp_path):
    load = LOAD.format(auto="AutoModel", folder=folder, options=", trust_remote_code=True")
    done = run(NOT_INSTALLED + load, tmp_path)
    assert done.returncode
    assert "needs the package antiphase" in done.stderr
    assert "git+https://" in done.stderr
    assert "upgrade transformers" not in done.stderr
    load = LOAD.format(auto="AutoModel", folder=folder, options=", trust_remote_code=False")
    done = run(NOT_INSTALLED + load, tmp_path)
    assert "trust_remote_code=True" in done.stderr
    assert "upgrade transformers" not in done.stderr


@torch.no_grad()
def test_token_classification_and_question_answering(tmp_path):
    torch.manual_seed(0)
    ids = token_ids()
    tokens = AntiphaseForTokenClassification(config("diff_v1", num_labels=5)).eval()
    out = tokens(ids, labels=torch.randint(0, 5, ids.shape))
    assert out.logits.shape == (3, 19, 5)
    assert out.loss.isfinite()
    tokens.save_pretrained(tmp_path / "tokens")
    assert "token-classification" in (tmp_path / "tokens" / "README.md").read_text()
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path / "tokens")
    assert torch.equal(loaded(ids).logits, out.logits)
    answers = AntiphaseForQuestionAnswering(config("diff_v2")).eval()
    out = answers(ids, start_positions=torch.tensor([1, 2, 3]), end_positions=torch.tensor([4] * 3))
    assert out.start_logits.shape == out.end_logits.shape == (3, 19)
    assert out.loss.isfinite()
    answers.save_pretrained(tmp_path / "answers")
    loaded = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "answers")
    assert torch.equal(loaded(ids).end_logits, out.end_logits)


@torch.no_grad()
def test_heads_take_the_body_of_a_language_model(tmp_path):
    net, ids = model("diff_v2"), token_ids()
    net.save_pretrained(tmp_path)
    body = AutoModelForQuestionAnswering.from_pretrained(tmp_path).model
    assert torch.equal(body(ids).last_hidden_state, net.model(ids).last_hidden_state)
    body.save_pretrained(tmp_path / "body")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "body")
    assert torch.equal(again.model(ids).last_hidden_state, net.model(ids).last_hidden_state)
