"""The rules without Spark find what they find with it: see ``harness.plainaudit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from brokencauses import BROKEN_CAUSES, KEPT_CAUSES
from brokenlevel5 import BROKEN_LEVEL5, KEPT_LEVEL5
from brokenlogs import BROKEN, KEPT, Case
from harness.logs import HeldLog
from harness.plainaudit import audit_plainly

from eventstore.format import decode_record
from spark.storage import RecordChecker, RecordRange

if TYPE_CHECKING:
    from collections.abc import Callable

ALL = (*BROKEN, *BROKEN_LEVEL5, *BROKEN_CAUSES, *KEPT, *KEPT_LEVEL5, *KEPT_CAUSES)


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


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_what_is_broken_is_found(make: Callable[[str], Case]) -> None:
    case, stream = make(make.__name__), _Stream()
    if case.after is not None:
        case.after(stream)  # type: ignore[arg-type]
    held = HeldLog(case.log, stream.first, stream.gone)
    whole = RecordRange(held, held.first, held.last, held.last)  # type: ignore[arg-type]
    found = audit_plainly(
        case.log.node, RecordChecker(whole, decode_record, strict=False).records()
    )
    told = [(str(one.rule), one.at, one.session) for one in found]
    assert sorted(told, key=str) == sorted(case.expected, key=str)
