"""A gated recurrent unit (arXiv 1406.1078) in the place of attention: before 2017.

    r, z = sigmoid(W x_t + U h_{t-1}),  n = tanh(W x_t + r (U h_{t-1}))
    h_t = (1 - z) n + z h_{t-1},  O = h W_O

PyTorch's own layer. All that a token knows of earlier ones is h, of constant size, which is also
what decoding caches. There is no attention map.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, count_tokens, merge_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import check_at_least_one
from antiphase.attention.projections import apply_linear
from antiphase.attention.recurrence import init_recurrence, matched_width, no_maps, run_recurrence
from antiphase.attention.running_noise import running_arguments, store_state


@dataclass(frozen=True)
class GruOptions:
    """Options of `Gru`.

    Args:
        width: of the state; by default, the layer has about as many parameters as standard
            attention.
    """

    width: int | None = None

    def __post_init__(self) -> None:
        if self.width is not None:
            check_at_least_one("width", self.width)


class Gru(Attention):
    """A GRU as the mixer of a block, with its state as the cache."""

    name = "gru"
    Options = GruOptions
    unsplit = "it has one state, not heads"
    static_cache = False
    running_state = True
    has_softmax = False
    has_maps = False
    row_by_row = False
    causal_only = True

    def build(self) -> None:
        D, d = self.hidden_size, self.head_dim
        baseline = 2 * D * d * (self.num_heads + self.num_kv_heads)
        self.width = self.options.width or matched_width(baseline, D, gates=3)
        self.rnn = nn.GRU(
            D, self.width, batch_first=True
        )  # always with biases, which start at zero
        init_recurrence(self.rnn)
        self.o_proj = nn.Linear(self.width, D, self.bias)

    def project(self, inputs: Inputs) -> Heads:
        x = inputs.x
        tokens = x[:, None]  # one head: the tokens themselves
        past = count_tokens(inputs.cache, x)
        return Heads(x, tokens, tokens, tokens, new=x.shape[1], past=past, cache=inputs.cache)

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        running = running_arguments(self.name, heads, masking)
        del running["causal"]
        out, state = run_recurrence(self.rnn, heads.x, **running)
        store_state(heads, state)
        return out[:, None]  # [B, 1, T, width]

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(o))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        raise no_maps(self.name)

    def output_scale(self, rms: float) -> float:
        measured = 0.335  # RMS of h in new layers of any width
        return rms / measured * (self.hidden_size / self.width) ** 0.5

    @property
    def rotary_widths(self) -> tuple[int, ...]:
        return ()

    @property
    def cache_elements_per_token(self) -> int:
        return 0

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": 1, "maps": 0, "kv_heads": 0, "width": self.width}
