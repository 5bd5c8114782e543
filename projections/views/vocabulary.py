"""Views and replies of a broker as JSON: the same names in every command.

Positions are text, such as ``12.3``; times are named ``..._at`` and given in UTC, in ISO format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from eventstore.display import iso
from eventstore.format.positions import format_position

_TIMES: Final = frozenset(
    f"{name}_ms"
    for name in (
        "closed",
        "connected",
        "counted_since",
        "dropped",
        "expires",
        "last_active",
        "last_close",
        "published",
        "reached",
        "sent",
        "set",
        "set_before",
    )
)


_SCALARS: Final = frozenset({str, int, bool, type(None), float})


def plain(value: Any) -> Any:
    """Return a view as a dict of numbers and texts; times stay Unix times in milliseconds."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    names: Mapping[str, object] = getattr(type(value), "__dataclass_fields__", {})
    if not names:
        return value
    own = {}
    for name in names:
        each = getattr(value, name)
        own[name] = each if type(each) in _SCALARS else plain(each)
    if own.get("replay", names) is None:
        del own["replay"]  # an ordinary subscription
    live = own.pop("live", None)
    return own | live if live else own


def json_name(name: str) -> str:
    """Return the name in JSON of a field of a view."""
    return name.removesuffix("_ms") + "_at" if name in _TIMES else name


def json_object(value: object, key: str = "") -> object:
    """Return a view, or a reply of a broker, as an object of ``--json``."""
    value = plain(value)
    if isinstance(value, Mapping):
        return {json_name(name): json_object(each, name) for name, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [json_object(each, key) for each in value]
    if isinstance(value, int) and key in ("position", "ref"):
        return format_position(value)
    return iso(value) if isinstance(value, int) and key in _TIMES else value
