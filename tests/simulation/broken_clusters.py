"""Clusters that break a rule, with one log or with several."""

from typing import Any

import pytest

from actors.maintenance.state_reader import StateReader
from eventstore.format.records import Record
from eventstore.log.log_writer import LogWriter

Patch = pytest.MonkeyPatch


def writes_on_although_another_node_leads(patch: Patch) -> None:
    fence = LogWriter._fence

    def unfenced(writer: LogWriter, record: Any) -> dict[str, str]:
        return {"Nats-Msg-Id": fence(writer, record)["Nats-Msg-Id"]}

    patch.setattr(LogWriter, "_fence", unfenced)


def follows_without_folding_every_record(patch: Patch) -> None:
    take = StateReader.take

    async def skip(reader: StateReader, record: Record) -> None:
        if record.sequence % 5:
            await take(reader, record)

    patch.setattr(StateReader, "take", skip)
