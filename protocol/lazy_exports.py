"""Lazy exports: a package's ``__getattr__`` (PEP 562), which imports a name at its first use.

Commands load only the modules that they need: ``foldmq --help`` imports neither nats-py nor the
broker.
"""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package (PEP 562).

    ``modules`` contains the names that each module of the package provides, separated by blanks. A
    module that provides its own name is itself the value.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> object:
        module = homes.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = import_module(f"{package}.{module}")
        return found if name == module else getattr(found, name)

    return load
