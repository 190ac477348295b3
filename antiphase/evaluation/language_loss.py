"""Loss on text, in total and separately for tokens that the context has already shown.

A token is an associative-recall hit if the n-gram that it completes occurred earlier in the same
sequence: it could have been copied. Differential attention is claimed to gain most there.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from antiphase.tasks.counter_rng import splitmix64
from antiphase.tasks.language import Language


@torch.no_grad()
def score_text(
    model: nn.Module, task: Language, examples: int = 64, batch: int = 8, ngram: int = 4
) -> dict[str, float]:
    """Score a causal language model on text.

    Args:
        model: called with `input_ids` [B, T]; its output has `logits` [B, T, V].
        task: the text, usually its validation or test split.
        examples: number of sequences, at most the size of the task.
        batch: number of sequences per forward pass.
        ngram: length of the n-grams that make a recall hit.

    Returns:
        `loss` per token in nats, `perplexity`, `recall_loss` on recall hits, `other_loss` on all
        other tokens, and `recall_fraction` of tokens that are hits.
    """
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    losses, hits = [], []
    n = min(examples, len(task))
    for start in range(0, n, batch):
        tokens = task.examples(range(start, min(n, start + batch))).tokens
        ids = torch.from_numpy(tokens).to(device)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        losses.append(loss.cpu().numpy())
        hits.append(recall_hits(tokens, ngram)[:, 1:].ravel())
    model.train(training)
    per_token, hit = np.concatenate(losses), np.concatenate(hits)
    mean = per_token.mean()
    return {
        "loss": float(mean),
        "perplexity": float(np.exp(np.minimum(mean, 700.0))),  # larger ones overflow
        "recall_loss": float(per_token[hit].mean()) if hit.any() else float("nan"),
        "other_loss": float(per_token[~hit].mean()) if (~hit).any() else float("nan"),
        "recall_fraction": float(hit.mean()),
    }


def recall_hits(tokens: NDArray[np.int64], ngram: int) -> NDArray[np.bool_]:
    """Find the tokens that complete an n-gram which occurred earlier in their sequence.

    Args:
        tokens: token ids, [B, T].
        ngram: length of the n-grams, at least 1.

    Returns:
        True at the hits, [B, T].
    """
    if ngram < 1:
        raise ValueError(f"ngram: got {ngram}, expected at least 1")
    hits = np.zeros(tokens.shape, dtype=bool)
    if tokens.shape[1] <= ngram:
        return hits
    hashes = np.zeros((tokens.shape[0], tokens.shape[1] - ngram + 1), dtype=np.uint64)
    for k in range(ngram):
        shifted = tokens[:, k : k + hashes.shape[1]].astype(np.uint64)
        with np.errstate(over="ignore"):
            hashes = splitmix64(hashes * np.uint64(31) + shifted + np.uint64(1))
    for row, row_hashes in enumerate(hashes):
        _, first, inverse = np.unique(row_hashes, return_index=True, return_inverse=True)
        hits[row, ngram - 1 :] = first[inverse.ravel()] < np.arange(len(row_hashes))
    return hits
