"""What `gru` and `lstm` share: PyTorch's recurrent layers over padded and packed sequences."""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

State = tuple[Tensor, ...]
"""The states of a recurrent layer, each [B, width]: h, and of an LSTM also c."""


def matched_width(parameters: int, hidden_size: int, gates: int) -> int:
    """Return the width at which a recurrent layer and W_O have about so many parameters.

    With w the width, D the tokens' and g gates, g (w D + w^2 + 2 w) + w D are as many as given. It
    is rounded down to a multiple of 8, where kernels are fast.

    Args:
        parameters: of the layer that it replaces.
        hidden_size: D.
        gates: 3 in a GRU, 4 in an LSTM, counting the candidate.
    """
    linear = hidden_size * (gates + 1) + 2 * gates
    width = int((math.sqrt(linear**2 + 4 * gates * parameters) - linear) / (2 * gates))
    return width // 8 * 8 or max(width, 1)


def init_recurrence(rnn: nn.RNNBase) -> None:
    """Initialise as PyTorch does, uniform in +-1 / sqrt(width), but with biases of zero."""
    limit = rnn.hidden_size**-0.5
    for name, parameter in rnn.named_parameters():
        if name.startswith("weight"):
            nn.init.uniform_(parameter, -limit, limit)
        else:
            nn.init.zeros_(parameter)


def no_maps(name: str) -> ValueError:
    """Return the error of a mechanism that has no attention maps."""
    return ValueError(
        f"maps: {name} is a recurrence, which has no attention map: no token has a weight for "
        "another one; compare its outputs, or choose another mechanism"
    )


def run_recurrence(
    rnn: nn.RNNBase,
    x: Tensor,
    state: Tensor | None,
    keys: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a recurrent layer over padded and packed sequences.

    Args:
        rnn: a GRU or LSTM of one layer, batch first.
        x: Tokens [B, T, D].
        state: The state of an earlier call [B, states * width], or None at the start.
        keys: Padding mask [B, T], True for tokens. Padding changes no state and gives zeros.
        starts: Where a document starts [B, T], True: with a state of zeros.

    Returns:
        The output [B, T, width], and the state after the last token.
    """
    states = 2 if isinstance(rnn, nn.LSTM) else 1
    if state is None:
        state = x.new_zeros(x.shape[0], states * rnn.hidden_size)
    if x.shape[0] == 0:
        return x.new_zeros(*x.shape[:2], rnn.hidden_size), state
    if keys is None and starts is None:
        out, last = rnn(x, _unpacked(state, states))
        return out, _packed(last)
    return _run_documents(rnn, x, state, states, keys, starts)


def _run_documents(
    rnn: nn.RNNBase,
    x: Tensor,
    state: Tensor,
    states: int,
    keys: Tensor | None,
    starts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run every document as a sequence of its own, without padding."""
    B, T = x.shape[:2]
    keys = torch.ones(B, T, dtype=torch.bool, device=x.device) if keys is None else keys
    ids = torch.zeros_like(keys, dtype=torch.long) if starts is None else starts.cumsum(1)
    ends = ids[:, -1]
    kept = state * (ends == 0)[:, None].to(state.dtype)  # 0 continues the document of the state
    row, time = keys.nonzero(as_tuple=True)
    if not len(row):
        return x.new_zeros(B, T, rnn.hidden_size), kept
    _, document, lengths = torch.unique_consecutive(
        row * (T + 1) + ids[row, time], return_inverse=True, return_counts=True
    )
    begin = lengths.cumsum(0) - lengths  # of each document, among all tokens
    place = torch.arange(len(row), device=x.device) - begin[document]
    its_row, its_id = row[begin], ids[row[begin], time[begin]]
    sequences = x.new_zeros(len(lengths), int(lengths.max()), x.shape[2])
    sequences = sequences.index_put((document, place), x[row, time])
    first = state[its_row] * (its_id == 0)[:, None].to(state.dtype)
    batch = pack_padded_sequence(sequences, lengths.cpu(), batch_first=True, enforce_sorted=False)
    packed, last = rnn(batch, _unpacked(first, states))
    padded, _ = pad_packed_sequence(packed, batch_first=True)
    out = padded.new_zeros(B, T, rnn.hidden_size).index_put((row, time), padded[document, place])
    final = its_id == ends[its_row]
    return out, kept.index_put((its_row[final],), _packed(last)[final].to(kept.dtype))


def _unpacked(state: Tensor, states: int) -> Tensor | State:
    """Return a state [B, states * width] as PyTorch's layers take it, [1, B, width] each."""
    parts = tuple(part.contiguous() for part in state[None].chunk(states, dim=-1))
    return parts[0] if states == 1 else parts


def _packed(last: Tensor | State) -> Tensor:
    """Return what `_unpacked` takes."""
    return torch.cat(last if isinstance(last, tuple) else (last,), dim=-1)[0]
