"""Public names of a package that are imported on first use.

`import antiphase.training` then costs nothing, and a light module such as
`antiphase.training.recipe` can be imported without PyTorch. Listings on the command line need that.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the module-level `__getattr__` of a package.

    Args:
        package: the package's `__name__`.
        homes: public name -> the module of this package that defines it.

    Returns:
        A function that imports a public name when it is first requested.
    """

    def getattr_of_module(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattr_of_module
