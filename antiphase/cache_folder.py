"""The folder in which built kernels, converted models and packed corpora are kept between runs."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder: `ANTIPHASE_CACHE`, or `antiphase` in the user's cache folder."""
    if given := os.environ.get("ANTIPHASE_CACHE"):
        return Path(given)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "antiphase"
