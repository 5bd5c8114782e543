"""Detects a Python built without optimizations, on which foldmq needs 25 % more CPU.

``python cli/common/interpreter.py`` prints ``optimised``, ``plain`` or ``unknown``;
``tools/choose_python.sh`` runs it with every interpreter before there is a virtual environment.
Hence only the standard library is imported here.
"""

import platform
import shlex
import sys
import sysconfig

NOT_OPTIMISED = (
    "this Python was built without --enable-optimizations: foldmq needs about 25 % more CPU"
)


def optimised(arguments: str | None) -> bool | None:
    """Return whether CPython configured with these arguments is optimised (PGO); None: unknown.

    Distributions build for ``/usr`` and optimise, Debian without the option. The result is unknown
    for interpreters that do not record their configuration.
    """
    if not arguments:
        return None
    given = shlex.split(arguments)
    return "--enable-optimizations" in given or "--prefix=/usr" in given


def own() -> bool | None:
    """Return whether the interpreter of this process is optimised; None: unknown."""
    if platform.python_implementation() != "CPython":
        return None
    return optimised(sysconfig.get_config_var("CONFIG_ARGS"))


def described() -> str:
    """Return name, version and build of this process's interpreter."""
    build = {True: "optimised build", False: "not optimised", None: "unknown build"}[own()]
    return f"{platform.python_implementation()} {platform.python_version()} ({build})"


if __name__ == "__main__":
    sys.stdout.write({True: "optimised\n", False: "plain\n", None: "unknown\n"}[own()])
