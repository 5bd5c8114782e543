"""How many examples a property test tries: some times as many as the profile says."""

from __future__ import annotations

from hypothesis import settings


def examples(times: int, **others: int) -> settings:
    """Return settings with so many times the examples of the profile (see tests/conftest.py)."""
    return settings(max_examples=times * settings().max_examples, **others)  # type: ignore[arg-type]
