"""The rules without Spark have the same findings as with it: see ``harness.plainaudit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from brokencauses import BROKEN_CAUSES, KEPT_CAUSES
from brokenlogs import BROKEN, KEPT, Case
from brokenmqtt5 import BROKEN_MQTT5, KEPT_MQTT5
from harness.logs import HeldLog, LogBuilder
from harness.plainaudit import audit_plainly
from holedlogs import BROKEN_HOLED, KEPT_HOLED

from eventstore.format.records import decode_record
from projections.audit.rule_table import Rule, Violation
from spark.tables.record_checks import RecordChecker
from spark.tables.stored_log import RecordRange

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parents[1] / "eventstore" / "golden"
ALL = (
    *BROKEN, *BROKEN_MQTT5, *BROKEN_CAUSES, *BROKEN_HOLED, *KEPT, *KEPT_MQTT5, *KEPT_CAUSES,
    *KEPT_HOLED,
)  # fmt: skip


class _Stream:
    """Takes what is done to a stream, instead of a server."""

    def __init__(self) -> None:
        self.first = 1
        self.gone: set[int] = set()

    def api(self, subject: str, request: dict[str, Any]) -> None:
        if subject.startswith("STREAM.PURGE."):
            self.first = request["seq"]
        else:
            self.gone.add(request["seq"])


def audited(log: LogBuilder, stream: _Stream) -> list[Violation]:
    held = HeldLog(log, stream.first, stream.gone)
    whole = RecordRange(held, held.first, held.last, held.last)  # type: ignore[arg-type]
    return audit_plainly(log.node, RecordChecker(whole, decode_record, strict=False).records())


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_violations_are_found(make: Callable[[str], Case]) -> None:
    case, stream = make(make.__name__), _Stream()
    if case.after is not None:
        case.after(stream)  # type: ignore[arg-type]
    found = audited(case.log, stream)
    told = [(str(one.rule), one.at, one.session) for one in found]
    assert sorted(told, key=str) == sorted(case.expected, key=str)


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.records")), ids=lambda file: file.stem)
def test_logs_of_earlier_versions_are_audited(file: Path) -> None:
    """They hold one event of each type, whether it fits or not; impossible ones are reported."""
    data, log, at = file.read_bytes(), LogBuilder("golden"), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        log.records.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    found = audited(log, _Stream())
    assert Rule.PROGRESS not in {one.rule for one in found}
    assert not [one for one in found if one.rule == Rule.DROP and "limit" in one.what]
