"""`import antiphase` teaches transformers' Auto classes our models, without loading either.

`AutoConfig` gets a stand-in under our model type. Its first use imports `antiphase.models`, which
registers the real classes with all Auto classes.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODEL_TYPE = "antiphase"
_AUTO_CONFIG = "transformers.models.auto.configuration_auto"


class _ConfigStandIn:
    """Takes the place of `AntiphaseConfig` in `AutoConfig` until the first model is loaded."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return _config_class()(*args, **kwargs)

    @classmethod
    def from_dict(cls, *args: Any, **kwargs: Any) -> Any:
        return _config_class().from_dict(*args, **kwargs)


def _config_class() -> Any:
    return importlib.import_module("antiphase.models").AntiphaseConfig


def register_on_import() -> None:
    """Register the models as soon as transformers' `AutoConfig` is imported, or now if it is."""
    if _AUTO_CONFIG in sys.modules:
        _register(sys.modules[_AUTO_CONFIG])
    else:
        sys.meta_path.insert(0, _AfterImport())


def _register(module: ModuleType) -> None:
    if MODEL_TYPE not in module.CONFIG_MAPPING:
        module.AutoConfig.register(MODEL_TYPE, _ConfigStandIn)


class _AfterImport(MetaPathFinder):
    """Calls `_register` once, after the module of `AutoConfig` was executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of that module with a longer `exec_module`; None for all others."""
        if name != _AUTO_CONFIG:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register(module)

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
