"""Learning dynamics: gradients of paired projections, Hessian extremes, the residual stream."""

from typing import Any

import torch
from torch import Tensor, nn

from antiphase.analysis.capture import projections
from antiphase.attention import Attention
from antiphase.models import AntiphaseForCausalLM
from antiphase.ops import repeat_heads


def pair_gradients(layer: Attention) -> dict[str, float]:
    """Return the cosine of the gradients of q1 and q2, and of k1 and k2, mean over heads.

    Call it after `backward`. Above 0, training moves both maps in the same direction.

    Args:
        layer: an attention layer whose query and key heads come in adjacent pairs, such as V1's.

    Returns:
        The cosines under `q` and `k`.

    Raises:
        ValueError: the layer has no gradients yet.
    """
    found = {}
    for name in ("q", "k"):
        weight = getattr(layer, f"{name}_proj").weight
        if weight.grad is None:
            raise ValueError(f"pair_gradients: {name}_proj has no gradient; call backward first")
        heads = weight.grad.unflatten(0, (-1, 2, layer.head_dim))  # [h, pair, d, D]
        one, two = heads[:, 0].flatten(1), heads[:, 1].flatten(1)
        found[name] = float(nn.functional.cosine_similarity(one, two, dim=-1).mean())
    return found


@torch.no_grad()
def residual_cosine(model: AntiphaseForCausalLM, ids: Tensor) -> Tensor:
    """Return the cosine of -lam A2 V W_O with the residual stream that it is added to.

    Below 0, the noise term removes what the stream holds (forgetting). The head norm is left out,
    since it acts on the difference, not on its parts.

    Args:
        model: one of our models, with two maps per head.
        ids: token ids, [B, T].

    Returns:
        One cosine per layer and token, [layers, B, T].
    """
    found = []
    every, hidden = projections(model, ids)
    for layer, heads, stream in zip(model.model.attention_layers, every, hidden, strict=False):
        maps = layer.maps(heads, layer.masking(causal=True))
        v = repeat_heads(heads.v, maps["noise"].shape[1])
        o = -(maps["lam"] * maps["noise"]) @ v.to(maps["noise"].dtype)
        out = layer.o_proj(o.transpose(1, 2).flatten(2).to(stream.dtype))
        found.append(nn.functional.cosine_similarity(out.float(), stream.float(), dim=-1))
    return torch.stack(found)


def hessian_extremes(
    model: AntiphaseForCausalLM, batch: dict[str, Tensor], steps: int = 20, seed: int = 0
) -> tuple[float, float]:
    """Return the largest and the smallest eigenvalue of the loss's Hessian, by Lanczos.

    Runs on the `reference` backend, which has second derivatives.

    Args:
        model: one of our models.
        batch: `input_ids` and `labels`, [B, T] each.
        steps: Lanczos iterations.
        seed: seed of the start vector.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("reference")
    parameters = [p for p in model.parameters() if p.requires_grad]
    try:
        loss = model(**batch, use_cache=False).loss
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        flat = torch.cat([g.flatten() for g in grads])

        def times(v: Tensor) -> Tensor:
            product = torch.autograd.grad(flat @ v, parameters, retain_graph=True)
            return torch.cat([p.flatten() for p in product])

        return lanczos(times, flat.numel(), steps, seed, flat)
    finally:
        model.set_attn_implementation(before)


def lanczos(times: Any, size: int, steps: int, seed: int, like: Tensor) -> tuple[float, float]:
    """Return the extreme eigenvalues of a symmetric operator, with full reorthogonalisation.

    Args:
        times: function from a vector [size] to the operator applied to it.
        size: dimension of the operator.
        steps: number of iterations, at most `size`.
        seed: seed of the start vector.
        like: a tensor of the wanted dtype and device.

    Returns:
        The largest and the smallest eigenvalue.
    """
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(size, generator=generator).to(like)
    basis = [v / v.norm()]
    alphas, betas = [], []
    for step in range(min(steps, size)):
        w = times(basis[-1]).detach()
        alphas.append(float(w @ basis[-1]))
        for direction in basis:
            w = w - (w @ direction) * direction
        beta = float(w.norm())
        if step + 1 == min(steps, size) or beta < 1e-8:
            break
        betas.append(beta)
        basis.append(w / beta)
    T = torch.diag(torch.tensor(alphas, dtype=torch.double))
    off = torch.tensor(betas[: len(alphas) - 1], dtype=torch.double)
    T = T + torch.diag(off, 1) + torch.diag(off, -1)
    eigenvalues = torch.linalg.eigvalsh(T)
    return float(eigenvalues[-1]), float(eigenvalues[0])
