"""See where a model attends: capture its attention maps on one sequence and draw them.

    pip install 'antiphase[plots]'
    python examples/attention_maps.py --model diff_v1 --out maps.png

The model is one of the nano models of the package (standard, diff_v1, diff_v2) or a run of the
needle task; its maps are drawn for the head with the most attention on the answer.
"""

import argparse

import matplotlib.pyplot as plt
import torch
from transformers import AutoModelForCausalLM

from antiphase.analysis import capture, ground_truth
from antiphase.analysis.metrics.allocation import allocation
from antiphase.models.locate import locate_model
from antiphase.tasks import task


def main() -> None:
    """Capture all rows of one sequence, choose a head, draw its maps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="diff_v1")
    parser.add_argument("--out", default="maps.png")
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(locate_model(options.model))
    examples = task("needle")(keys=8, noise=1.0, repeats=3, split="test").examples([0])
    ids, truth = torch.from_numpy(examples.tokens), ground_truth(examples)

    # Choose the head by the rows that predict an answer, then capture every row of its layer.
    on_answer = torch.stack(
        [
            allocation(layer.difference, truth)["relevant"].mean((0, 2))
            for layer in capture(model, ids, truth.rows).layers
        ]
    )  # [layers, heads]
    layer, head = divmod(int(on_answer.argmax()), on_answer.shape[1])
    maps = capture(model, ids, torch.arange(ids.shape[1])[None]).layers[layer]
    panels = {"A1": maps.signal, "A2": maps.noise, "applied to V": maps.difference}
    panels = {name: A[0, head] for name, A in panels.items() if A is not None}

    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 4), layout="constrained")
    relevant = truth.relevant[0].nonzero()  # (row, key) where the answer stands
    for axis, (name, A) in zip(axes, panels.items(), strict=True):
        most = float(A.abs().max())
        axis.imshow(A.numpy(), cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
        axis.scatter(
            relevant[:, 1], truth.rows[0][relevant[:, 0]], s=6, facecolors="none", edgecolors="k"
        )
        axis.set(title=name, xlabel="key position", ylabel="query position")
    figure.suptitle(
        f"{options.model}, layer {layer}, head {head}; circles: where the answer stands"
    )
    figure.savefig(options.out, dpi=120)
    print(f"layer {layer}, head {head}: {on_answer.max():.2f} of its attention is on the answer")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
