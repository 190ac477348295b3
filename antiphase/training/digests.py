"""SHA-256 digests of data, files and weights: names for what decides an outcome, and checksums."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def short_digest(data: Any) -> str:
    """Return 12 hex digits that identify plain data (what JSON can hold), whatever its order."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def file_digest(path: Path) -> str:
    """Return the checksum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def weights_digest(model: "nn.Module") -> str:
    """Return the checksum of a model's weights and buffers, with their names."""
    import torch  # here, since a recipe's digest needs none of it

    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
