"""``foldmq outbox retry`` with more messages than may wait to be sent again."""

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cli.commands import outbox
from cli.logs.source_flags import SourceFlags
from eventstore.format.positions import format_position

WAITING = 10_000


class Broker:
    """A broker in which so many messages may wait."""

    node = "n"

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.sizes: list[int] = []

    async def ask(self, _endpoint: str, **request: Any) -> dict[str, Any]:
        refs = [ref for ref in request["refs"] if ref not in self.waiting]
        self.sizes.append(len(request["refs"]))
        taken = refs[: WAITING - len(self.waiting)]
        self.waiting.update(taken)
        return {"taken": len(taken), "left": len(refs) - len(taken)}


def test_the_others_follow_with_the_next_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = Broker()
    refused = [{"log": None, "position": format_position(at << 20)} for at in range(1, 12_002)]

    @contextlib.asynccontextmanager
    async def open_brokers(_flags: SourceFlags) -> AsyncIterator[Any]:
        yield SimpleNamespace(present=[broker], prefix=lambda _node: "")

    async def read_refused(*_: object) -> tuple[list[dict[str, Any]], list[str]]:
        return refused, []

    monkeypatch.setattr(outbox, "open_brokers", open_brokers)
    monkeypatch.setattr(outbox, "_read_refused", read_refused)
    flags = cast("SourceFlags", None)
    outbox.retry_messages(flags, "erp", None)
    assert max(broker.sizes) <= 5000
    expected = "10,000 messages will be sent again; repeat this command later for 2,001 more"
    assert capsys.readouterr().out == f"erp: {expected}\n"
    outbox.retry_messages(flags, "erp", None)
    expected = (
        "0 messages will be sent again; 10,000 wait for it already; repeat this command later for "
        "2,001 more"
    )
    assert capsys.readouterr().out == f"erp: {expected}\n"
