"""The intersection of topic filters, and the removal of covered NATS subscriptions.

Filters are lists of levels here, as ``protocol.mqtt.topics.split_levels`` returns them.
"""


def common_levels(one: list[str], other: list[str]) -> list[str] | None:
    """Return the filter for the topics that two filters both match, None if there are none."""
    for mine, yours in ((one[0], other[0]), (other[0], one[0])):
        if mine in ("+", "#") and yours.startswith("$"):  # [MQTT-4.7.2-1]
            return None
    common: list[str] = []
    for at, (mine, yours) in enumerate(zip(one, other, strict=False)):
        if mine == "#":
            return common + other[at:]
        if yours == "#":
            return common + one[at:]
        if mine != yours and "+" not in (mine, yours):
            return None
        common.append(yours if mine == "+" else mine)
    after = (one if len(one) > len(other) else other)[len(common) :]
    return common if after in ([], ["#"]) else None


def levels_below(levels: list[str], above: tuple[str, ...]) -> list[str] | None:
    """Return the levels of a filter below ``above``: ``[]`` for itself only, None for nothing."""
    if above and above[0].startswith("$") and levels[0] in ("+", "#"):  # [MQTT-4.7.2-1]
        return None
    for wanted, level in zip(levels, above, strict=False):
        if wanted == "#":
            return ["#"]
        if wanted not in ("+", level):
            return None
    if len(levels) < len(above):
        return None
    return levels[len(above) :]


def without_covered(patterns: list[str]) -> tuple[str, ...]:
    """Remove each pattern that another one covers; the patterns must be different."""
    root = _PatternNode()
    for pattern in patterns:
        node = root
        for token in pattern.split("."):
            node = node.below.setdefault(token, _PatternNode())
        node.pattern = pattern
    return tuple(pattern for pattern in patterns if not _is_covered(pattern, root))


class _PatternNode:
    """The patterns that begin with the same tokens."""

    __slots__ = ("below", "pattern")

    def __init__(self) -> None:
        self.below: dict[str, _PatternNode] = {}
        self.pattern: str | None = None
        """The pattern that ends here."""


def _is_covered(pattern: str, root: _PatternNode) -> bool:
    """Return whether another pattern matches everything that this one matches."""
    nodes = [root]
    for token in pattern.split("."):
        for node in nodes:
            rest = node.below.get(">")
            if rest is not None and rest.pattern != pattern:
                return True
        wider = ("*",) if token in ("*", ">") else ("*", token)
        nodes = [node.below[key] for node in nodes for key in wider if key in node.below]
    ends_with_rest = pattern == ">" or pattern.endswith(".>")
    return not ends_with_rest and any(node.pattern not in (None, pattern) for node in nodes)
