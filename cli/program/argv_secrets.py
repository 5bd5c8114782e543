"""Keeps passwords that are given as flags out of the process list.

All users of a machine can read the arguments of a process, only its owner its environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def hide(argv: Sequence[str]) -> None:
    """Replace the process by one with the passwords in the environment instead of the arguments.

    ``argv`` begins with the program. Returns if there is nothing to hide.
    """
    kept, found = without_secrets(argv)
    if found and _is_command(argv[0]):
        command = [sys.executable, *kept]
        os.execve(sys.executable, command, {**os.environ, **found})  # noqa: S606 -- no shell needed


def _is_command(program: str) -> bool:
    """Return whether this process runs the installed command."""
    installed = Path(sys.executable).with_name("foldmq")
    return installed.is_file() and Path(program).is_file() and installed.samefile(program)


def without_secrets(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without passwords, and the passwords by environment variable."""
    secrets = _OF_CLIENTS if argv[1:2] and argv[1] in _CLIENTS else _OF_ALL
    kept: list[str] = []
    found: dict[str, str] = {}
    rest = iter(argv)
    for argument in rest:
        flag, value = _split(argument)
        secret = secrets.get(flag)
        if secret is None:
            kept.append(argument)
            continue
        whole = [argument]
        if value is None:
            value = next(rest, None)
            if value is None:
                kept.append(argument)
                break
            whole.append(value)
        if secret.is_url and "@" not in value:
            kept += whole
        else:
            found[secret.variable] = value
    return kept, found


def _split(argument: str) -> tuple[str, str | None]:
    """Return a flag and the value attached to it, if any."""
    if argument.startswith("-P") and len(argument) > 2:
        return "-P", argument[2:]
    flag, sign, value = argument.partition("=")
    return flag, value if sign else None
