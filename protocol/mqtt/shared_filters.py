"""The filters of shared subscriptions: ``$share/NAME/FILTER``."""

from typing import Final

SHARE: Final[str] = "$share/"
"""Prefix of the filter of a shared subscription."""


def split_share(topic_filter: str) -> tuple[str, str]:
    """Split a legal filter into share name and filter; the name is empty if it is not shared."""
    if not topic_filter.startswith(SHARE):
        return "", topic_filter
    name, _, inner = topic_filter[len(SHARE) :].partition("/")
    return name, inner
