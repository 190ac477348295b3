"""Loss on real text, apart for what the context has said before and for the rest.

A token is an associative-recall hit if the n-gram that it closes stood earlier in the same text: it
could have been looked up. Differential attention is said to gain there most.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from antiphase.tasks.counter_rng import mix
from antiphase.tasks.language import Language


@torch.no_grad()
def score_text(
    model: nn.Module, task: Language, examples: int = 64, batch: int = 8, ngram: int = 4
) -> dict[str, float]:
    """Return the loss a token, its perplexity, and the loss on recall hits and on the rest."""
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
    each, hit = np.concatenate(losses), np.concatenate(hits)
    return {
        "loss": float(each.mean()),
        "perplexity": float(np.exp(np.minimum(each.mean(), 700.0))),
        "recall_loss": float(each[hit].mean()) if hit.any() else float("nan"),
        "other_loss": float(each[~hit].mean()) if (~hit).any() else float("nan"),
        "recall_share": float(hit.mean()),
    }


def recall_hits(tokens: NDArray[np.int64], ngram: int) -> NDArray[np.bool_]:
    """Return where a token closes an n-gram that stood earlier in its text, [B, T]."""
    if ngram < 1:
        raise ValueError(f"ngram: got {ngram}, expected at least 1")
    hits = np.zeros(tokens.shape, dtype=bool)
    if tokens.shape[1] <= ngram:
        return hits
    grams = np.zeros((tokens.shape[0], tokens.shape[1] - ngram + 1), dtype=np.uint64)
    for k in range(ngram):
        piece = tokens[:, k : k + grams.shape[1]].astype(np.uint64)
        with np.errstate(over="ignore"):
            grams = mix(grams * np.uint64(31) + piece + np.uint64(1))
    for row, words in enumerate(grams):
        _, first, inverse = np.unique(words, return_index=True, return_inverse=True)
        hits[row, ngram - 1 :] = first[inverse.ravel()] < np.arange(len(words))
    return hits
