"""What other libraries learn of our models on `import antiphase`, without loading them or PyTorch.

- transformers: `AutoConfig` gets stand-ins under our model types. Their first use imports
  `antiphase.models`, which registers the real classes with all Auto classes.
- PEFT: default target modules, those of Llama, whose projections have the same names.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CONFIGS = {  # by model type
    "antiphase": "AntiphaseConfig",
    "antiphase_seq2seq": "AntiphaseSeq2SeqConfig",
}


def register() -> None:
    """Register the models with libraries that are imported, and with others once they are."""
    _after_import("transformers.models.auto.configuration_auto", _with_transformers)
    _after_import("peft.utils.constants", _with_peft)


def _with_transformers(module: ModuleType) -> None:
    for model_type, name in CONFIGS.items():
        if model_type not in module.CONFIG_MAPPING:
            module.AutoConfig.register(model_type, type(name, (_ConfigStandIn,), {"name": name}))


class _ConfigStandIn:
    """Takes the place of a configuration in `AutoConfig` until the first model is loaded."""

    name: str  # of the class in `antiphase.models`

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._config_class()(*args, **kwargs)

    @classmethod
    def from_dict(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._config_class().from_dict(*args, **kwargs)

    @classmethod
    def _config_class(cls) -> Any:
        return getattr(importlib.import_module("antiphase.models"), cls.name)


def _with_peft(module: ModuleType) -> None:
    for name, table in vars(module).items():
        if name.endswith("_MODULES_MAPPING") and "llama" in table:
            for model_type in CONFIGS:
                table.setdefault(model_type, table["llama"])


def _after_import(name: str, function: Callable[[ModuleType], None]) -> None:
    """Call a function with a module once it is imported, now if it already is."""
    if name in sys.modules:
        function(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, function))


class _AfterImport(MetaPathFinder):
    """Finds one module, as the other finders do, and calls a function after its execution."""

    def __init__(self, name: str, function: Callable[[ModuleType], None]) -> None:
        self.name, self.function = name, function

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of that module with a longer `exec_module`; None for all others."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self.function(module)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
