"""Grouped differential latent attention, GDLA (Motif-3), in a small form.

    cq = RMSNorm(x W_qa),  q = cq W_qb;  c = RMSNorm(x W_kva),  k = [c W_k | k_pe],  v = c W_v
    O_i = sigmoid(cq W_g)_i * ((A1_i - sigmoid(x W_lam)_i A2_g) V_g),  g = i // ratio;  then W_O

The baseline's heads form groups of `ratio` signal heads and, last, one noise head; a group has one
key and value head. Keys and values come from a latent c, narrow and shared by all heads; k_pe, one
key that RoPE rotates, is shared as well. Only c (after its norm) and k_pe are cached.

Decoding is absorbed: W_k is multiplied into the query and W_v into the output, so that cached
latents are the keys and values of all heads, and are never expanded. Tokens without cached ones
before them are expanded, which costs less where there are as many queries as keys.

Motif-3 has 3 layers with a window of 128 to every one without; so has a model of this mechanism
with `sliding_window=128`, unless `layer_types` says otherwise.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, cat, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import Float32Parameters, check_at_least_one, per_row
from antiphase.attention.projections import apply_linear, matrix_of
from antiphase.ops import attention_maps, diff_attention, rms_norm, statistics_dtype


@dataclass(frozen=True)
class GroupedLatentOptions:
    """Options of `GroupedLatent`.

    Args:
        ratio: signal heads per noise head.
        q_rank: width of the queries' latent; a quarter of the tokens' by default.
        kv_rank: width of the latent c of keys and values; an eighth by default.
    """

    ratio: int = 3
    q_rank: int | None = None
    kv_rank: int | None = None

    def __post_init__(self) -> None:
        check_at_least_one("ratio", self.ratio, " signal head per noise head")
        for name, rank in (("q_rank", self.q_rank), ("kv_rank", self.kv_rank)):
            if rank is not None:
                check_at_least_one(name, rank)


class LatentNorm(Float32Parameters):
    """RMSNorm of a latent, with a gain per channel."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.empty(width, dtype=torch.float32))
        self.init_parameters()

    def init_parameters(self) -> None:
        nn.init.ones_(self.gain)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., width], normalised."""
        return rms_norm(x, self.gain, self.eps)


class GroupedLatent(Attention):
    """Grouped differential attention over a cached latent."""

    name = "grouped_latent"
    Options = GroupedLatentOptions
    unsplit = "all heads share the key that has RoPE, whose gradient would be incomplete"
    full_attention_every = 4

    def build(self) -> None:
        D, d, bias, ratio = self.hidden_size, self.head_dim, self.bias, self.options.ratio
        if self.num_heads % (ratio + 1):
            raise ValueError(
                f"num_heads: grouped_latent at ratio {ratio} splits the baseline's heads into "
                f"groups of {ratio + 1}, and {self.num_heads} cannot be split so; use a multiple "
                f"of {ratio + 1}, or another ratio"
            )
        self.groups = self.num_heads // (ratio + 1)
        self.h = ratio * self.groups
        self.q_rank = self.options.q_rank or max(D // 4, 1)
        self.kv_rank = self.options.kv_rank or max(D // 8, 1)
        # Half as wide as the part without RoPE, and even.
        self.nope, self.rope_width = d, 2 * -(-d // 4)
        self.scale = (self.nope + self.rope_width) ** -0.5
        self.q_down_proj = nn.Linear(D, self.q_rank, bias)
        self.q_norm = LatentNorm(self.q_rank, self.eps)
        self.q_proj = nn.Linear(self.q_rank, self.num_heads * (self.nope + self.rope_width), bias)
        self.kv_down_proj = nn.Linear(D, self.kv_rank, bias)
        self.kv_norm = LatentNorm(self.kv_rank, self.eps)
        self.k_rope_proj = nn.Linear(D, self.rope_width, bias)
        # Never a bias: they are absorbed into queries and outputs, as matrices.
        self.k_proj = nn.Linear(self.kv_rank, self.groups * self.nope, bias=False)
        self.v_proj = nn.Linear(self.kv_rank, self.groups * d, bias=False)
        self.lambda_proj = nn.Linear(D, self.h, bias=False)  # lam starts near 0.5, as in V2
        self.gate_proj = nn.Linear(self.q_rank, self.h * d, bias=False)
        self.o_proj = nn.Linear(self.h * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        cq = self.q_norm(apply_linear(self.q_down_proj, x))  # [B, Tq, q_rank]
        q = apply_linear(self.q_proj, cq).unflatten(-1, (self.num_heads, -1))
        q, q_pe = q.split([self.nope, self.rope_width], dim=-1)
        q_pe = rope(q_pe.flatten(2), self.rope_width, inputs.rotary)
        q = q.unflatten(2, (self.groups, -1)).permute(0, 2, 3, 1, 4)  # [B, G, ratio + 1, Tq, nope]
        q_pe = q_pe.unflatten(-1, (self.groups, -1, self.rope_width)).permute(0, 2, 3, 1, 4)
        c = self.kv_norm(apply_linear(self.kv_down_proj, context))
        k_pe = rope(apply_linear(self.k_rope_proj, context), self.rope_width, inputs.key_rotary)
        c, k_pe = extend_cache(inputs.cache, c[:, None], k_pe[:, None])  # [B, 1, Tk, kv_rank | ...]
        new = context.shape[1]
        if new == c.shape[2]:
            k = split_heads(apply_linear(self.k_proj, c[:, 0]), self.nope)  # [B, G, Tk, nope]
            k = cat([k, k_pe.expand(-1, self.groups, -1, -1)], dim=-1)
            v = split_heads(apply_linear(self.v_proj, c[:, 0]), d)
        else:  # absorbed
            q = q @ matrix_of(self.k_proj, c).unflatten(0, (self.groups, 1, self.nope))
            k, v = cat([c, k_pe], dim=-1), c
        q = cat([q, q_pe], dim=-1)
        q1, q2 = q[:, :, :-1].flatten(1, 2), q[:, :, -1]
        lam = apply_linear(self.lambda_proj, x)
        lam = torch.sigmoid(lam.to(statistics_dtype(lam.dtype))).mT[..., None]  # [B, h, Tq, 1]
        gate = split_heads(torch.sigmoid(apply_linear(self.gate_proj, cq)), d)  # [B, h, Tq, d]
        return Heads(x, q1, k, v, q2, k, lam=lam, gate=gate, new=new)

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        return diff_attention(
            *heads.diff_arguments,
            scale=self.scale,
            scale2=self.scale,
            **masking.of_output,
            backend=backend,
        )

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        if heads.new != heads.k.shape[2]:  # absorbed: o [B, h, Tq, kv_rank]
            W_V = matrix_of(self.v_proj, o).unflatten(0, (self.groups, 1, self.head_dim))
            o = (o.unflatten(1, (self.groups, -1)) @ W_V.mT).flatten(1, 2)
        assert heads.gate is not None
        return apply_linear(self.o_proj, merge_heads(o * heads.gate))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        A1, A2, A = attention_maps(
            *heads.diff_arguments, scale=self.scale, scale2=self.scale, **masking.of_maps
        )
        return {"signal": A1, "noise": A2, "lam": per_row(heads.lam, A1), "difference": A}

    def output_scale(self, rms: float) -> float:
        gates = 0.5  # at the start
        return (self.hidden_size / self.o_proj.in_features) ** 0.5 / gates

    @property
    def rotary_widths(self) -> tuple[int, ...]:
        return (self.rope_width,)

    @property
    def cache_elements_per_token(self) -> int:
        return self.kv_rank + self.rope_width

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": self.num_heads, "kv_heads": self.groups}
