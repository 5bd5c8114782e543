"""The installed version of foldmq, and how its optional packages are installed."""

import contextlib
import importlib.metadata
import shlex
import sys

try:
    version = importlib.metadata.version("foldmq")
except importlib.metadata.PackageNotFoundError:
    # Running from a checkout that is not installed.
    version = "from source"


def install_command(extra: str, package: str) -> str:
    """Return the command that installs the packages of an extra: an index may have no foldmq.

    ``package`` is installed if foldmq runs from a checkout that is not installed.
    """
    packages: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for requirement in importlib.metadata.requires("foldmq") or ():
            name, _, condition = requirement.partition(";")
            if condition.replace("'", '"').strip() == f'extra == "{extra}"':
                packages.append(name.strip())
    return shlex.join([sys.executable, "-m", "pip", "install", *(packages or [package])])
