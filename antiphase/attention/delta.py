"""Gated delta rule (Gated DeltaNet, arXiv 2412.06464): a baseline whose state is corrected.

    q, k, v = silu(convolution(x W_Q | x W_K | x W_V))
    S_t = a_t S_{t-1} + k_t u_t^T,  u_t = beta_t (v_t - a_t S_{t-1}^T k_t),  o_t = S_t^T q_t
    beta = sigmoid(x W_beta),  a = exp(-exp(A) softplus(x W_a + b)),  O = norm(o) W_O

q and k have length 1, beta and a are one number per token and key/value head. The heads are the
baseline's. There is no RoPE: with it, a key at another position would be another key, and could not
be replaced. What a token knows of its neighbours it has from the convolution over 4 tokens; without
it (`convolution=0`, and then without SiLU), a key and the value after it never meet in the first
layer. The published layer also has a gate on the output, which is left out.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, count_tokens, merge_heads, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import Float32Parameters, HeadNorm, softplus
from antiphase.attention.projections import apply_linear
from antiphase.attention.running_noise import (
    marks_of_inputs,
    running_arguments,
    store_state,
    visible_noise,
)
from antiphase.ops import delta_map, delta_rule, short_convolution, statistics_dtype

SHORTEST, LONGEST = 0.1, 0.001  # softplus at the start: 1 / tokens after which 1/e of S is left


@dataclass(frozen=True)
class DeltaOptions:
    """Options of `Delta`.

    Args:
        convolution: how many tokens the convolution of q, k and v sees, itself included; 0 for no
            convolution.
    """

    convolution: int = 4

    def __post_init__(self) -> None:
        if self.convolution < 0 or self.convolution == 1:
            raise ValueError(
                f"convolution: got {self.convolution}, expected 0 for none, or at least 2 tokens"
            )


class Convolution(Float32Parameters):
    """silu of a short causal convolution, with weights of its own for every channel.

    Args:
        heads: of q, k and v together.
        width: channels per head.
        tokens: that it sees.
    """

    def __init__(self, heads: int, width: int, tokens: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, width, tokens, dtype=torch.float32))
        self.init_parameters()

    def init_parameters(self) -> None:
        # As PyTorch's Conv1d: the output has a third of the input's variance, whatever K is. The
        # scale does not matter behind it: q and k are normalised, and so is the output.
        limit = self.weight.shape[-1] ** -0.5
        nn.init.uniform_(self.weight, -limit, limit)

    def forward(
        self, x: Tensor, window: Tensor | None, keys: Tensor | None, starts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the output [B, heads, T, width] and the last tokens, as `short_convolution`."""
        y, window = short_convolution(x, self.weight, keys=keys, starts=starts, state=window)
        return F.silu(y), window


class Decay(Float32Parameters):
    """log a = -exp(A) softplus(z + b), one A and b per head.

    Heads start with memories of different length, 10 to 1,000 tokens in geometric steps. The steps
    are constants that are added to b, so that b starts at zero.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.b = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.init_parameters()

    def init_parameters(self) -> None:
        nn.init.zeros_(self.A)
        nn.init.zeros_(self.b)

    def forward(self, z: Tensor) -> Tensor:
        """Return log a [B, T, heads], in fp32 (fp64 for fp64), of z = x W_a [B, T, heads]."""
        dtype = statistics_dtype(z.dtype)
        steps = torch.linspace(0, 1, z.shape[-1], device=z.device, dtype=dtype)
        memory = SHORTEST * (LONGEST / SHORTEST) ** steps
        offset = torch.log(torch.expm1(memory))  # softplus(offset) = memory
        return -self.A.to(dtype).exp() * softplus(z.to(dtype) + self.b.to(dtype) + offset)


class Delta(Attention):
    """A state per head that replaces the value of a key when it is written again."""

    name = "delta"
    version = 2
    Options = DeltaOptions
    unsplit = "the decay of a head depends on its number among all heads"
    static_cache = False
    running_state = True
    has_softmax = False
    row_by_row = False
    causal_only = True

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.q_proj = nn.Linear(D, self.num_heads * d, bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.o_proj = nn.Linear(self.num_heads * d, D, bias)
        # Never a bias: beta starts near 0.5, and `Decay` has one.
        self.beta_proj = nn.Linear(D, self.num_kv_heads, bias=False)
        self.decay_proj = nn.Linear(D, self.num_kv_heads, bias=False)
        self.forgetting = Decay(self.num_kv_heads)
        if self.options.convolution:
            heads = self.num_heads + 2 * self.num_kv_heads
            self.convolution = Convolution(heads, d, self.options.convolution)
        self.norm = HeadNorm("rms", d, 1.0, self.eps)

    def project(self, inputs: Inputs) -> Heads:
        x, d, cache = inputs.x, self.head_dim, inputs.cache
        q, k, v = (
            split_heads(apply_linear(W, x), d) for W in (self.q_proj, self.k_proj, self.v_proj)
        )  # [B, h | h_kv, new, d]
        beta = torch.sigmoid(apply_linear(self.beta_proj, x).to(statistics_dtype(q.dtype)))
        decay = self.forgetting(apply_linear(self.decay_proj, x))
        gates = torch.stack([beta, decay], dim=-1).transpose(1, 2)  # [B, h_kv, new, 2]
        past, new = count_tokens(cache, x), x.shape[1]
        dtype, window = v.dtype, None
        if self.options.convolution:
            _, window = self._split_state(None if cache is None else cache.state())
            marks = marks_of_inputs(self.name, inputs, past)
            qkv, window = self.convolution(torch.cat([q, k, v], dim=1), window, **marks)
            q, k, v = qkv.split([q.shape[1], k.shape[1], v.shape[1]], dim=1)
        q, k = (F.normalize(t.to(statistics_dtype(dtype)), dim=-1) for t in (q, k))
        v = v.to(dtype)
        return Heads(x, q, k, v, k2=gates, new=new, past=past, cache=cache, window=window)

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        assert heads.k2 is not None
        running = running_arguments(self.name, heads, masking)
        del running["causal"]
        running["state"], _ = self._split_state(running["state"])
        out, state = delta_rule(heads.q, heads.k, heads.v, *heads.k2.unbind(-1), **running)
        if heads.window is not None:
            state = torch.cat([state.flatten(1), heads.window.flatten(1)], dim=1)
        store_state(heads, state)
        if masking.dropout:  # of single weights
            return masking.apply(self.maps(heads, masking)["difference"], heads.v)
        return out

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(self.norm(o)))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        assert heads.k2 is not None
        visible_noise(self.name, heads, masking)  # raises if keys are missing
        running = running_arguments(self.name, heads, masking)
        marks = {name: running[name] for name in ("keys", "starts")}
        A = delta_map(heads.q, heads.k, *heads.k2.unbind(-1), **marks)
        return {"signal": A, "difference": A}

    def _split_state(self, state: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return S [B, h_kv, d, d] and the last tokens [B, h + 2 h_kv, K - 1, d] of a state."""
        if state is None or not self.options.convolution:
            return state, None
        h, h_kv, d = self.num_heads, self.num_kv_heads, self.head_dim
        S, window = state.split([h_kv * d * d, state.shape[1] - h_kv * d * d], dim=1)
        return S.view(-1, h_kv, d, d), window.view(
            -1, h + 2 * h_kv, self.options.convolution - 1, d
        )

    @property
    def rotary_widths(self) -> tuple[int, ...]:
        return ()

    @property
    def cache_elements_per_token(self) -> int:
        return 0
