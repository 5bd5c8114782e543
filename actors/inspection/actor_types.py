"""The types of actors, as in their names."""

from typing import Final

SESSION_TYPES: Final = ("session", "sharedsession")
"""The types of actors that are sessions."""
ACTOR_TYPES: Final = (
    "broker",
    "inspector",
    *SESSION_TYPES,
    "connection",
    "subscription",
    "bridge",
    "logexchange",
    "fanout",
    "turnwork",
)
"""All types: the names of the classes in lower case."""
