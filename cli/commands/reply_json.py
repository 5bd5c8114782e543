"""Replies of a broker for ``--json``."""

from collections.abc import Iterable, Mapping

from eventstore.format.positions import format_position


def json_object(found: object, key: str = "") -> object:
    """Return a reply with positions in their text form, such as ``12.3``."""
    if isinstance(found, Mapping):
        return {name: json_object(value, name) for name, value in found.items()}
    if isinstance(found, Iterable) and not isinstance(found, str):
        return [json_object(one) for one in found]
    if isinstance(found, int) and key in ("position", "ref", "oldest"):
        return format_position(found)
    return found
