"""Modules that are executed when they are used, not when they are imported.

nats-py imports aiohttp, for NATS servers behind WebSocket, and its part for JetStream; paho imports
urllib.request, for proxies. Each takes a tenth or more of the time of a command that needs none.
"""

import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_lock = threading.RLock()


class _Deferred(ModuleType):
    """A module that is executed when one of its attributes is used."""

    def __getattr__(self, name: str) -> object:
        spec = self.__spec__
        # The import system looks for attributes of a module that begin with two underscores.
        if name.startswith("__") or spec is None:
            raise AttributeError(name)
        with _lock:
            loader = spec.loader
            if isinstance(loader, _DeferredLoader):
                loader.execute(self)
            elif type(self) is _Deferred:  # it is being executed and has not come to this name
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self, name)


class _DeferredLoader(Loader):
    """Makes a module without executing it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: ``execute`` follows at its first use."""

    def execute(self, module: ModuleType) -> None:
        """Execute the module."""
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        module.__class__ = ModuleType


class _DeferredFinder(MetaPathFinder):
    """Finds the deferred modules before Python's own finder does."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferredLoader(spec.loader)
        return spec


def defer(*names: str) -> None:
    """Execute modules when they are used; a second call has no effect."""
    if not any(isinstance(finder, _DeferredFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DeferredFinder(frozenset(names)))
