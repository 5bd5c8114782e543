"""Columns of events of several sessions."""


def columns(values: list[str]) -> tuple[list[str], list[int]]:
    """Distinct values, and for each of the values which it is."""
    found = list(dict.fromkeys(values))
    if len(found) in (1, len(values)):
        return found, []
    return found, [found.index(value) for value in values]
