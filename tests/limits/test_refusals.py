"""Refusals: each is counted, and a log line appears from time to time."""

from typing import Any

from structlog.testing import capture_logs

from actors.limits.client_limits import ClientLimits
from actors.limits.limit_options import LimitOptions
from actors.limits.rejection_log import RejectionLog


def test_all_refusals_are_counted_and_few_logged() -> None:
    refusals = RejectionLog("refused")
    with capture_logs() as lines:
        for number in range(1000):
            refusals.add("overload", number * 0.02, address=f"192.0.2.{number % 250}")
        refusals.add("flapping", 20.0, client="c")
    assert refusals.counts == {"overload": 1000, "flapping": 1}
    said = [(line["reason"], line["times"]) for line in lines]
    assert said == [("overload", 1), ("overload", 500), ("flapping", 1)]
    assert lines[1]["address"] == "192.0.2.0"


def test_each_reason_is_logged_separately() -> None:
    refusals = RejectionLog("refused")
    with capture_logs() as lines:
        for reason in ("a", "b", "a", "b", "c"):
            refusals.add(reason, 0.0)
    assert [line["reason"] for line in lines] == ["a", "b", "c"]


def test_the_latest_ones_are_kept_for_all_logs_that_count_together() -> None:
    refusals = RejectionLog("refused")
    RejectionLog("protocol error", 1, refusals).add("protocol_error", 5.0, client="c", error="x")
    refusals.add("overload", 1.0, 50)
    refusals.add("overload", 7.0, address="192.0.2.1")
    assert refusals.counts == {"protocol_error": 1, "overload": 51}
    latest = refusals.latest["overload"]
    assert [*latest.times] == [1.0] * 9 + [7.0]
    assert latest.whose == {"address": "192.0.2.1"}
    assert refusals.latest["protocol_error"].whose == {"client": "c", "error": "x"}


def test_no_kind_of_refusal_fills_the_log() -> None:
    limits: ClientLimits[Any] = ClientLimits(LimitOptions(), {})
    kinds = (
        limits.refused,
        limits.late,
        limits.rejected,
        limits.reauthentications,
        limits.broken,
    )
    for log in kinds:
        with capture_logs() as lines:
            for number in range(2000):
                log.add("reason", number * 0.01, user=f"user {number}")
        assert 2 <= len(lines) <= 20
        for line in lines[1:]:
            assert line["times"] == 1 or line["times"] >= 990
