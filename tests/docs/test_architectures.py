"""The table of supported architectures is what the code does today."""

import warnings

import pytest
import transformers

from tests.docs.pages import script, text


@pytest.fixture(scope="module")
def generated():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()
        return script("generate_architectures").page()


def test_the_committed_table_is_current(generated):
    table = [line for line in text("docs/architectures.md").splitlines() if line.startswith("|")]
    assert table == [line for line in generated.splitlines() if line.startswith("|")], (
        "run python docs/generate_architectures.py"
    )


def test_the_committed_reasons_are_current(generated):
    committed = text("docs/architectures.md")
    if f"(transformers {transformers.__version__})" not in committed:
        pytest.skip("written with another transformers, whose names may differ")
    assert committed == generated, "run python docs/generate_architectures.py"


def test_known_families_are_supported(generated):
    assert "| `LlamaForCausalLM` | ✔ | ✔ | ✔ |  |" in generated
    assert "| `DiffLlamaForCausalLM` | ✔ |  |  | ✔ |" in generated


def test_a_wrong_result_is_no_support():
    checks = script("generate_architectures")
    checks.CHECKS["capture"] = lambda model: checks.require_close(
        checks.logits(model) + 1, checks.logits(model), "logits"
    )
    assert "logits differ" in checks.supported("Llama", "capture")
