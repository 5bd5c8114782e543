"""The number of examples of a property test: a multiple of the profile's."""

from hypothesis import settings


def examples(times: int, **others: int) -> settings:
    """Return settings with this multiple of the examples of the profile (see tests/conftest.py)."""
    return settings(max_examples=times * settings().max_examples, **others)  # type: ignore[arg-type]
