"""The process of a command: its arguments, the modules that it executes late, and its end.

All users of a machine can read the arguments of a process, only its owner its environment:
passwords that are given as flags are kept out of the process list.

nats-py imports aiohttp, for NATS servers behind WebSocket, and its part for JetStream; paho imports
urllib.request, for proxies. Each takes a tenth or more of the time of a command that needs none, so
they are executed when they are used, not when they are imported. So is what reads certificates: it
would be a tenth of the memory of a broker without TLS.
"""

import atexit
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn


class Secret(NamedTuple):
    """A flag whose value is, or may contain, a password."""

    variable: str
    """The environment variable for the same value."""
    is_url: bool = False
    """Only a URL with an @ contains a password."""


_OF_ALL = {
    "--nats-password": Secret("FOLDMQ_NATS_PASSWORD"),
    "--nats-url": Secret("FOLDMQ_NATS_URL", is_url=True),
    "--bridge-password": Secret("FOLDMQ_BRIDGE_PASSWORD"),
    "--bridge-url": Secret("FOLDMQ_BRIDGE_URL", is_url=True),
}
_OF_CLIENTS = {
    **dict.fromkeys(("-P", "--pw", "--password"), Secret("FOLDMQ_PASSWORD")),
    "--to-url": Secret("FOLDMQ_TO_URL", is_url=True),
    "--url": Secret("FOLDMQ_URL", is_url=True),
}
_CLIENTS = ("pub", "sub", "import")


def hide_secrets(argv: Sequence[str]) -> None:
    """Replace the process by one with the passwords in the environment instead of the arguments.

    ``argv`` begins with the program. Returns if there is nothing to hide.
    """
    kept, secrets = without_secrets(argv)
    if secrets and _is_command(argv[0]):
        command = [sys.executable, *kept]
        os.execve(sys.executable, command, {**os.environ, **secrets})  # noqa: S606 -- no shell needed


def _is_command(program: str) -> bool:
    """Return whether this process runs the installed command."""
    installed = Path(sys.executable).with_name("foldmq")
    return installed.is_file() and Path(program).is_file() and installed.samefile(program)


def without_secrets(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without passwords, and the passwords by environment variable."""
    secrets = _OF_CLIENTS if argv[1:2] and argv[1] in _CLIENTS else _OF_ALL
    kept: list[str] = []
    passwords: dict[str, str] = {}
    words = iter(argv)
    for argument in words:
        flag, value = _split(argument)
        secret = secrets.get(flag)
        if secret is None:
            kept.append(argument)
            continue
        whole = [argument]
        if value is None:
            value = next(words, None)
            if value is None:
                kept.append(argument)
                break
            whole.append(value)
        if secret.is_url and "@" not in value:
            kept += whole
        else:
            passwords[secret.variable] = value
    return kept, passwords


def _split(argument: str) -> tuple[str, str | None]:
    """Return a flag and the value attached to it, if any."""
    if argument.startswith("-P") and len(argument) > 2:
        return "-P", argument[2:]
    flag, sign, value = argument.partition("=")
    return flag, value if sign else None


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


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """Make imports of these modules fail in this block, as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: not to be imported
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def end_process(ended: SystemExit) -> NoReturn:
    """End the process as ``ended`` says, without freeing its modules one by one.

    For a command that asks a broker, that would be a fifth of its processor time. Functions
    registered with atexit are called, and output is written, as always. With another thread, or if
    output cannot be written, Python ends the process.
    """
    code = 0 if ended.code is None else ended.code
    if not isinstance(code, int) or threading.active_count() > 1:
        raise ended
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public name
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        raise ended from None
    os._exit(code & 0xFF)
