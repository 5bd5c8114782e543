"""Values of flags and arguments, converted without pydantic where that is simple.

typer converts each value with pydantic, whose import and adapters take longer than most commands. A
value that may be invalid is left to typer, and so are its messages.
"""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LEFT: Any = object()
"""Stands for a value that typer has to convert."""


def convert_plainly(parameters: Iterable[Any]) -> None:
    """Convert the plain values of parameters without pydantic."""
    for parameter in parameters:
        # Earlier versions of typer have no such function: they convert without pydantic.
        by_typer = getattr(parameter, "get_runtime_param", None)
        if by_typer is not None and "get_runtime_param" not in vars(parameter):
            parameter.get_runtime_param = partial(_same, _PlainValues(parameter, by_typer))


def _same(plain: _PlainValues) -> _PlainValues:
    return plain


class _PlainValues:
    """Converts the values of a parameter; ``by_typer`` returns a converter of the others."""

    def __init__(self, parameter: Any, by_typer: Callable[[], Any]) -> None:
        described = parameter.type_descriptor
        self._annotation = described.annotation
        self._info = described.parameter_info
        self._several = parameter.multiple or parameter.nargs == -1
        self._by_typer = by_typer

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of the parameter."""
        found = self._plain(value)
        return self._by_typer().coerce(value, param=param, ctx=ctx) if found is _LEFT else found

    def _plain(self, value: Any) -> Any:
        if self._info.parser is not None:
            return _LEFT
        if value is None:
            return () if self._several else None
        if not self._several:
            return _converted(value, self._annotation, self._info)
        if get_origin(self._annotation) is not list or isinstance(value, str):
            return _LEFT
        (kind,) = get_args(self._annotation)
        items = [_converted(item, kind, self._info) for item in value]
        return _LEFT if _LEFT in items else items


def _converted(value: Any, annotation: Any, info: Any) -> Any:
    """Return a value of the annotated type, or _LEFT."""
    if annotation in (str, bool) and isinstance(value, annotation):
        return value
    if annotation in (int, float):
        return _number(value, annotation, info)
    if annotation is Path:
        return _path(value, info)
    if get_origin(annotation) is Literal and value in get_args(annotation):
        return value
    return _LEFT


def _number(value: Any, kind: type[int | float], info: Any) -> Any:
    try:
        number = kind(value)
    except (TypeError, ValueError):
        return _LEFT
    if isinstance(value, bool) or not math.isfinite(number):
        return _LEFT
    if info.clamp or "_" in str(value) or (kind is int and number != float(value)):
        return _LEFT
    low, high = info.min, info.max
    if (low is not None and number < low) or (high is not None and number > high):
        return _LEFT
    return number


def _path(value: Any, info: Any) -> Any:
    special = info.exists or info.resolve_path or info.allow_dash or info.writable
    if special or info.path_type is not None or not (info.file_okay and info.dir_okay):
        return _LEFT
    if not isinstance(value, str | Path) or "\0" in str(value):
        return _LEFT
    return Path(value) if not Path(value).exists() or os.access(value, os.R_OK) else _LEFT
