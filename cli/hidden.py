"""Keeps passwords that are given as flags out of the process list."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def hide(argv: Sequence[str], variables: Mapping[str, str]) -> None:
    """Begin anew with the values of some flags in the environment, if any of them was given.

    ``argv`` begins with the program, ``variables`` has the variable for each flag. Everybody on a
    machine can read the arguments of a process, only its owner the environment. Returns when
    there is nothing to hide.
    """
    kept, found = _without(argv, variables)
    if found and Path(argv[0]).is_file():
        command = [sys.executable, *kept]
        os.execve(sys.executable, command, {**os.environ, **found})  # noqa: S606 -- no shell needed


def _without(argv: Sequence[str], variables: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without those flags, and their values by variable."""
    kept: list[str] = []
    found: dict[str, str] = {}
    rest = iter(argv)
    for argument in rest:
        flag, sign, value = argument.partition("=")
        if flag not in variables:
            kept.append(argument)
        elif sign:
            found[variables[flag]] = value
        else:
            found[variables[flag]] = next(rest, "")
    return kept, found
