"""Flags as dataclasses, with a field for each; the text below a field is its help."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from typer.models import ParameterInfo

from cli.common.attribute_texts import texts_below


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the flags of the dataclasses among its parameters.

    The flags take the place of the dataclass; the command is called with the dataclasses.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if _is_group(hint)}

    def run(*arguments: Any, **values: Any) -> None:
        for name, group in groups.items():
            flags = {field.name: values.pop(field.name) for field in dataclasses.fields(group)}
            values[name] = group(**flags)
        command(*arguments, **values)

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _flags(groups[name])
        else:
            parameters.append(_flag(name, hints[name], parameter.default))
    # typer builds its command from the signature and the annotations.
    made: Any = functools.wraps(command)(run)
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped: Callable[..., None] = made
    return wrapped


def _is_group(hint: Any) -> bool:
    """Return whether a type is a dataclass of flags."""
    if not dataclasses.is_dataclass(hint):
        return False
    hints = get_type_hints(hint, include_extras=True).values()
    return all(hasattr(each, "__metadata__") for each in hints)


def _flags(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for name, text in texts_below(group.__module__).get(group.__name__, {}).items():
        _option(hints[name]).help = text
    return [
        _flag(
            field.name,
            hints[field.name],
            inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(group)
    ]


def _flag(name: str, hint: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def given_flags(group: Any) -> list[str]:
    """Return the flags of a group with other values than their defaults."""
    hints = get_type_hints(type(group), include_extras=True)
    return [
        _spelled(hints[field.name])
        for field in dataclasses.fields(group)
        if getattr(group, field.name) != field.default and getattr(group, field.name) != []
    ]


def _option(hint: Any) -> ParameterInfo:
    """Return typer's declaration of a flag or argument."""
    (option,) = (each for each in hint.__metadata__ if isinstance(each, ParameterInfo))
    return option


def _spelled(hint: Any) -> str:
    option = _option(hint)
    # The first word of an option in an annotation takes the usual place of its default.
    words = (option.default, *(option.param_decls or ()))
    return next(word for word in words if isinstance(word, str) and word.startswith("--"))
