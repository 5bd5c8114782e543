"""Detects a Python built without optimizations, and modules of foldmq that are not compiled.

On such a Python foldmq needs 25 % more CPU, and as plain Python a third more.

``python cli/common/interpreter.py`` prints ``optimised``, ``plain`` or ``unknown``;
``tools/choose_python.sh`` runs it with every interpreter before there is a virtual environment.
Hence only the standard library is imported here.
"""

import importlib.util
import platform
import shlex
import sys
import sysconfig

NOT_OPTIMISED = (
    "this Python was built without --enable-optimizations: foldmq needs about 25 % more CPU"
)


NOT_COMPILED = (
    "foldmq runs as plain Python, which needs about a third more CPU: it was installed without a C "
    "compiler, or its sources have changed since (in a checkout: make install)"
)


def optimised(arguments: str | None) -> bool | None:
    """Return whether CPython configured with these arguments is optimised (PGO); None: unknown.

    Distributions build for ``/usr`` and optimise, Debian without the option. The result is unknown
    for interpreters that do not record their configuration.
    """
    if not arguments:
        return None
    words = shlex.split(arguments)
    return "--enable-optimizations" in words or "--prefix=/usr" in words


def own() -> bool | None:
    """Return whether the interpreter of this process is optimised; None: unknown."""
    if platform.python_implementation() != "CPython":
        return None
    return optimised(sysconfig.get_config_var("CONFIG_ARGS"))


def compiled() -> bool:
    """Return whether this process uses the compiled modules of foldmq (``setup.py``)."""
    spec = importlib.util.find_spec("protocol.mqtt.decoder")
    return spec is not None and not str(spec.origin).endswith(".py")


def described() -> str:
    """Return name, version and build of this process's interpreter, and of foldmq's modules."""
    build = {True: "optimised build", False: "not optimised", None: "unknown build"}[own()]
    modules = "compiled modules" if compiled() else "plain modules"
    return f"{platform.python_implementation()} {platform.python_version()} ({build}, {modules})"


if __name__ == "__main__":
    sys.stdout.write({True: "optimised\n", False: "plain\n", None: "unknown\n"}[own()])
