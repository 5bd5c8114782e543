"""Changes of a broker that its tests must detect."""

from collections.abc import Callable
from typing import Any

import pytest


def sets(target: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a change that replaces an attribute."""
    return lambda patch: patch.setattr(target, name, value)
