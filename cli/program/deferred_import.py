"""Modules that are loaded when they are used, not when they are imported.

nats-py imports aiohttp, which takes a fifth of a second, for NATS servers behind WebSocket only.
"""

import sys
from importlib import import_module
from types import ModuleType


class _Deferred(ModuleType):
    """Stands for a module until one of its attributes is used."""

    def __getattr__(self, name: str) -> object:
        module = sys.modules[self.__name__]
        if module is self:
            del sys.modules[self.__name__]
            module = import_module(self.__name__)
        return getattr(module, name)


def defer(module: str) -> None:
    """Load a module when it is used."""
    sys.modules.setdefault(module, _Deferred(module))
