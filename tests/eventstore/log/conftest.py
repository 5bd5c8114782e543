import pytest

from eventstore.log import log_writer


@pytest.fixture(autouse=True)
def _frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer looks for missing answers ten times as often: what it finds is the same."""
    monkeypatch.setattr(log_writer, "_WATCH_EVERY", 0.05)
