"""The files that settings of a sink name, read as they are now."""

import contextlib
from collections.abc import Iterator

from outbox.sink import TryAgain


@contextlib.contextmanager
def usable_files(*settings: str) -> Iterator[None]:
    """Raise TryAgain, which names these settings, if one of their files cannot be used."""
    try:
        yield
    except (OSError, ValueError) as error:  # also of TLS, and a secret that is none
        reason = getattr(error, "strerror", None) or str(error)
        raise TryAgain(f"{' or '.join(settings)}: {reason}", misconfigured=True) from None
