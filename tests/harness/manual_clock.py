"""A clock whose time only the test sets."""


class ManualClock:
    """Returns the seconds in ``now``."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
