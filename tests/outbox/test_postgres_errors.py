"""What the PostgreSQL sink tells of errors of the database."""

from __future__ import annotations

import pytest

from outbox.sink import TryAgain

asyncpg = pytest.importorskip("asyncpg")


@pytest.mark.parametrize("quotes", [False, True])
def test_an_error_about_sealed_contents_is_not_quoted(*, quotes: bool) -> None:
    from outbox.sinks.postgres import _judge

    with pytest.raises(TryAgain) as raised:
        _judge(asyncpg.RaiseError("a trigger says: secret"), quotes=quotes)
    assert ("secret" in raised.value.reason) is quotes
    assert "P0001" in raised.value.reason or quotes
