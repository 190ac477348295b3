"""vLLM itself serves trained models: its greedy tokens are those of `generate`.

vLLM has an environment of its own, ANTIPHASE_VLLM or `vllm` in the cache folder, which
`docs/serving_environment.sh` makes; the first run takes minutes.
"""

import json
import os
import subprocess
import time
import warnings
from pathlib import Path

import pytest
import torch

from antiphase.cache_folder import cache_folder
from antiphase.models import AntiphaseForCausalLM, preset

ROOT = Path(__file__).parents[2]
NEW_TOKENS = 32
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def python() -> Path:
    """Return the Python of an environment with vLLM; skip loudly where there can be none."""
    folder = Path(os.environ.get("ANTIPHASE_VLLM", cache_folder() / "vllm"))
    found = folder / "bin" / "python"
    ready = [str(found), "-c", "import antiphase, vllm"]
    if found.exists() and subprocess.run(ready, capture_output=True, check=False).returncode == 0:
        return found
    script = ROOT / "docs" / "serving_environment.sh"
    done = subprocess.run([str(script), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = f"vLLM was NOT tested: its installation failed\n{done.stderr[-1000:]}"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    return found


def trained(name: str) -> AntiphaseForCausalLM:
    """Return a model that learned to repeat sequences, with heads of a width that vLLM has."""
    torch.manual_seed(0)
    net = AntiphaseForCausalLM(preset("nano", name, vocab_size=64, num_key_value_heads=2))
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(120):
        half = torch.randint(1, 64, (16, 24))
        ids = torch.cat([half, half], dim=1)
        optimiser.zero_grad()
        net(ids, labels=ids, use_cache=False).loss.backward()
        optimiser.step()
    return net.eval()


@pytest.mark.parametrize("name", ["standard", "diff_v1", "diff_v2"])
def test_vllm_gives_the_tokens_of_generate(name, python, tmp_path, capsys):
    net = trained(name)
    net.save_pretrained(tmp_path / "model")
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(1, 64, (n,), generator=generator).tolist() for n in (9, 23, 64, 40)]
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    command = [tmp_path / "model", tmp_path / "prompts.json", tmp_path / "out.json", NEW_TOKENS]
    done = subprocess.run(
        [str(python), str(Path(__file__).with_name("vllm_generate.py")), *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    served = json.loads((tmp_path / "out.json").read_text())
    greedy = {"max_new_tokens": NEW_TOKENS, "do_sample": False}
    seconds = 0.0
    for prompt, tokens in zip(prompts, served["tokens"], strict=True):
        start = time.perf_counter()
        want = net.generate(torch.tensor([prompt]), **greedy)[0, len(prompt) :].tolist()
        seconds += time.perf_counter() - start
        assert len(set(want)) > 4  # not one token over and over
        assert tokens == want
    rate = len(prompts) * NEW_TOKENS / seconds
    with capsys.disabled():
        print(f"\n{name}: vLLM {served['tokens_per_second']:.0f} tokens/s, generate {rate:.0f}")
