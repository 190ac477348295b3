"""The commands that start a planned run on several nodes."""

import json
import shlex
from collections.abc import Sequence

# How Accelerate is told to shard by FSDP2, whatever starts the processes.
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}


def launch_lines(
    source: str, settings: Sequence[str], devices: int, per_node: int = 8
) -> dict[str, str]:
    """Return the commands by launcher: torchrun, SLURM and Ray.

    Args:
        source: name or path of the recipe.
        settings: of the command line, `name=value`.
        devices: number of accelerators.
        per_node: accelerators of a node.
    """
    per_node = min(per_node, devices)
    nodes = -(-devices // per_node)
    environment = " ".join(f"{name}={value}" for name, value in FSDP.items())
    chosen = "".join(f" --set {shlex.quote(text)}" for text in settings)
    run = f"-m antiphase train {source}{chosen} --out /shared/runs/{source}"
    launcher = f"torchrun --nnodes {nodes} --nproc-per-node {per_node} --rdzv-backend c10d"
    return {
        "torchrun, on every node": f"{environment} {launcher} --rdzv-endpoint HOST:29500 {run}",
        "SLURM": (
            f"sbatch --nodes {nodes} --ntasks-per-node 1 --gpus-per-node {per_node} --wrap "
            f"'export {environment}; srun {launcher} --rdzv-endpoint "
            f"$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):29500 {run}'"
        ),
        "Ray": (
            f"ray job submit --runtime-env-json '{json.dumps({'env_vars': FSDP})}' -- python -c "
            '"from ray.train import ScalingConfig; from ray.train.torch import TorchTrainer; '
            "from antiphase import train; "
            "from antiphase.training.recipe import apply_settings, load_recipe; "
            f"r = apply_settings(load_recipe('{source}'), {list(settings)}); "
            f"TorchTrainer(lambda: train(r, '/shared/runs/{source}'), "
            f'scaling_config=ScalingConfig(num_workers={devices}, use_gpu=True)).fit()"'
        ),
    }
