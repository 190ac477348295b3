"""The commands that start a planned run on several nodes."""

import json
import shlex
from collections.abc import Sequence

from antiphase.options import build
from antiphase.tasks.language import LanguageOptions
from antiphase.tasks.text.packing import PACKED
from antiphase.tasks.text.tokenizer import BYTES
from antiphase.training.components import LANGUAGE
from antiphase.training.recipe import Recipe
from antiphase.training.run_folder import recipe_name

# How Accelerate is told to shard by FSDP2, whatever starts the processes.
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}
PACKED_TEXT = "/shared/text"  # where the planned run finds its text


def launch_lines(
    source: str, settings: Sequence[str], devices: int, per_node: int = 8
) -> dict[str, str]:
    """Return the commands by launcher: torchrun, SLURM and Ray; a shell takes them as they are.

    Args:
        source: name or path of the recipe.
        settings: of the command line, `name=value`.
        devices: number of accelerators.
        per_node: accelerators of a node, at most; as many are used as divide `devices`.
    """
    per_node = next(n for n in range(min(per_node, devices), 0, -1) if devices % n == 0)
    nodes = devices // per_node
    out = f"/shared/runs/{recipe_name(source)}"
    environment = " ".join(f"{name}={value}" for name, value in FSDP.items())
    chosen = [word for text in settings for word in ("--set", text)]
    run = shlex.join(["-m", "antiphase", "train", source, *chosen, "--out", out])
    launcher = f"torchrun --nnodes {nodes} --nproc-per-node {per_node} --rdzv-backend c10d"
    script = (
        f"export {environment}; srun {launcher} --rdzv-endpoint "
        f"$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):29500 {run}"
    )
    code = "; ".join(
        [
            "from ray.train import ScalingConfig",
            "from ray.train.torch import TorchTrainer",
            "from antiphase import train",
            "from antiphase.training.recipe import apply_settings, load_recipe",
            f"r = apply_settings(load_recipe({source!r}), {list(settings)!r})",
            f"scale = ScalingConfig(num_workers={devices}, use_gpu=True)",
            f"TorchTrainer(lambda: train(r, {out!r}), scaling_config=scale).fit()",
        ]
    )
    variables = shlex.quote(json.dumps({"env_vars": FSDP}))
    return {
        "torchrun, on every node": f"{environment} {launcher} --rdzv-endpoint HOST:29500 {run}",
        "SLURM": (
            f"sbatch --nodes {nodes} --ntasks-per-node 1 --gpus-per-node {per_node} "
            f"--wrap {shlex.quote(script)}"
        ),
        "Ray": f"ray job submit --runtime-env-json {variables} -- python -c {shlex.quote(code)}",
    }


def pack_line(recipe: Recipe) -> str | None:
    """Return the command that packs a recipe's text once; None if there is none, or it is packed.

    Args:
        recipe: of the run, which then takes the text from `packed:/shared/text`.
    """
    if recipe.task != LANGUAGE:
        return None
    options = build(f"task {LANGUAGE!r}", LanguageOptions, recipe.task_options)
    sources = [options.text] if isinstance(options.text, str) else options.text
    if any(source.startswith(PACKED) for source in sources):
        return None
    how = ["--tokenizer", options.tokenizer or BYTES, "--out", PACKED_TEXT]
    return shlex.join(["antiphase", "data", "pack", *sources, *how])
