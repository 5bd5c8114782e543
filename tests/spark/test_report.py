"""The report of an audit as text and as JSON, and the numbers behind its plots."""

import json
import shlex
from dataclasses import replace

import pytest
from outcomes import BEGINS_MS, HOSTILE, broken, kept, nothing, silent

from eventstore.display import json_line
from projections.audit.audit_outcome import (
    DropCount,
    LatencyHistogram,
    Outcome,
    RatePoint,
)
from projections.audit.rule_table import RULES, Violation
from projections.log_proof import Doubt, damaged
from spark.report import findings, json_report
from spark.report import text_report as text
from spark.report.charts import Line, time_chart
from spark.report.series import (
    drops_by_reason,
    latency_shares,
    rate_series,
    round_numbers,
)
from spark.report.text_report import table_lines

ALL = {"kept": kept, "broken": broken, "nothing": nothing, "silent": silent}


@pytest.mark.parametrize("which", ALL)
def test_every_line_is_printable_and_of_a_bounded_length(which: str) -> None:
    lines = text.audit_text(ALL[which]()).splitlines()
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 800


def test_the_verdict_comes_first() -> None:
    found = text.audit_text(kept()).splitlines()
    assert found[0] == (
        "kept: 29 guarantees, in 5,000,083 entries of n1, 2026-05-28 20:26:40 to 20:36:40 UTC"
    )
    assert text.audit_text(broken()).startswith(
        "BROKEN: 4 of 29 guarantees, 12,356 violations, "
        "in 10,000,166 entries of the logs of 2 nodes"
    )


def test_the_verdict_says_for_which_time_it_holds() -> None:
    doubt = Doubt(3, "copy", 2, 2, BEGINS_MS + 1000, BEGINS_MS + 4000, 6)
    outcome = silent()
    outcome = replace(outcome, nodes=(replace(outcome.nodes[0], doubts=(doubt,)),))
    found = text.audit_text(outcome).splitlines()
    assert found[0] == (
        "kept: 28 guarantees, in 4 entries of n1, 2026-05-28 20:26:40 to 20:26:41 UTC, "
        "2026-05-28 20:26:44 to 20:26:45 UTC; nothing can be said about 1 part"
    )
    said = "nothing can be said about 2026-05-28 20:26:41 UTC to 2026-05-28 20:26:44 UTC: "
    assert found[1].startswith(f"not proven: {said}the broker started on a copy")
    (node,) = json_report.audit_json(outcome)["nodes"]
    assert [span["to"] for span in node["proven"]] == [
        "2026-05-28T20:26:41.000Z",
        "2026-05-28T20:26:45.000Z",
    ]
    assert node["not_proven"][0]["missing"] == 6


def test_the_verdict_about_a_damaged_log_ends_where_the_audit_ended() -> None:
    outcome = silent()
    doubt = damaged(3, BEGINS_MS + 1000, audited=True)
    rules = (replace(outcome.rules[0], violations=1), *outcome.rules[1:])
    node = replace(outcome.nodes[0], doubts=(doubt,), audited=2)
    outcome = replace(outcome, nodes=(node,), rules=rules)
    lines = text.audit_text(outcome).splitlines()
    assert lines[:2] == [
        (
            "BROKEN: 1 of 28 guarantees, 1 violation, in 2 entries of n1, "
            "2026-05-28 20:26:40 to 20:26:41 UTC; nothing can be said about 1 part"
        ),
        (
            "not proven: nothing can be said about the time since 2026-05-28 20:26:41 UTC: "
            "record 3 is damaged or missing, and later ones are not audited"
        ),
    ]
    (found,) = json_report.audit_json(outcome)["nodes"]
    assert [span["to"] for span in found["proven"]] == ["2026-05-28T20:26:41.000Z"]
    assert (found["audited"], found["not_proven"][0]["reason"]) == (2, "not_audited")
    several = replace(outcome, nodes=(node, replace(node, node="n2")))
    assert (
        "in 4 entries of the logs of 2 nodes, 2026-05-28 20:26:40 to 20:26:41 UTC"
        in (text.audit_text(several).splitlines()[0])
    )


def test_an_empty_log_is_no_success_story() -> None:
    assert text.audit_text(nothing()) == "nothing to audit: the log is empty\n\naudited in 1.2 s\n"
    none = replace(nothing(), nodes=())
    assert text.audit_text(none).startswith("nothing to audit: the log is empty")


def test_a_log_without_any_delivery_has_no_latencies() -> None:
    found = text.audit_text(silent())
    assert found.startswith(
        "kept: 28 guarantees, in 4 entries of n1, 2026-05-28 20:26:40 to 20:26:45"
    )
    assert "no delivery was acknowledged" in found
    assert "slowest" not in found
    assert "dropped because of" not in found


def test_a_broken_log_that_holds_nothing_is_broken() -> None:
    outcome = nothing()
    first = replace(outcome.rules[0], violations=1)
    bad = replace(
        outcome,
        rules=(first, *outcome.rules[1:]),
        violations=(Violation("chain", 0, "record 1 is missing", node="n1"),),
    )
    found = text.audit_text(bad)
    assert found.startswith("BROKEN: 1 of 1 guarantee, 1 violation, in an empty log")
    assert "foldmq log verify" in found


def test_violations_have_a_position_and_the_next_command() -> None:
    lines = text.audit_text(broken()).splitlines()
    at = lines.index("packet_id_reuse: 9 violations")
    assert lines[at + 1] == (
        "  the guarantee: no packet identifier is assigned while it is in flight"
    )
    assert lines[at + 2].startswith("  n1 at 12.0 <script>alert(1)</script>: packet identifier 0")
    assert lines[at + 3].strip() == (
        "foldmq log --node n1 --session '<script>alert(1)</script>' --to 12.0 -n 10"
    )
    assert "  and 4 more" in lines
    assert "  and 12,340 more" in lines
    assert "note: the broker did not answer in time: it was not compared <hr>" in lines


@pytest.mark.parametrize("session", [*HOSTILE, "plain", "", None])
def test_a_proposed_command_is_one_command_and_means_the_session(session: str | None) -> None:
    found = findings.next_step(
        Violation("order", (12 << 20) + 3, "came late", session=session, node="n1"), several=False
    )
    assert found.isprintable()
    words = shlex.split(found)
    assert words[:2] == ["foldmq", "log"]
    named = [word for word in words if session and session in word and word != "foldmq"]
    if session and session.isprintable() and len(session) <= 200:
        assert named in ([session], [f"--session={session}"])
        assert words[-4:] == ["--to", "12.3", "-n", "10"]
    else:
        assert words[2:] == ["--from", "12.3", "-n", "1"]


def test_the_next_command_depends_on_the_rule() -> None:
    def step(rule: str, what: str = "") -> str:
        return findings.next_step(
            Violation(rule, 7 << 20, what, session="s", node="n1"), several=True
        )

    assert step("chain") == step("turn") == "foldmq log verify --node n1"
    assert step("state") == "foldmq replay --node n1 --session s --at 7.0"
    assert step("undelivered", "message 3.14 was neither") == (
        "foldmq why --node n1 --position 3.14 --client s"
    )
    assert step("queue") == "foldmq log --node n1 --session s --to 7.0 -n 10"


def test_json_has_everything_and_survives_a_terminal() -> None:
    outcome = broken()
    line = json_line(json_report.audit_json(outcome))
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert found["kept"] is False
    assert [rule["rule"] for rule in found["rules"]] == list(RULES)
    assert len(found["violations"]) == len(outcome.violations)
    first = found["violations"][0]
    assert (first["position"], first["at"], first["session"]) == ("12.0", 12 << 20, HOSTILE[0])
    assert {one["session"] for one in found["slowest"]} == set(HOSTILE)
    assert found["nodes"][0]["begins"] == "2026-05-28T20:26:40.000Z"
    assert found["latencies"][0]["bounds_ms"][:3] == [1, 2, 4]
    assert json_report.audit_json(nothing())["nodes"][0]["begins"] is None


def test_rates_are_whole_and_few() -> None:
    outcome = kept(seconds=3000, nodes=2)
    found = rate_series(outcome.rates, outcome.interval_ms)
    assert len(found.at_ms) == 375
    assert found.interval_ms == 8000
    told = sum(point.published for point in outcome.rates)
    assert sum(found.published) * 8 == pytest.approx(told)
    quiet = [
        value
        for at, value in zip(found.at_ms, found.published, strict=True)
        if BEGINS_MS + 104_000 <= at < BEGINS_MS + 128_000
    ]
    assert quiet == [0.0] * 3
    assert {
        later - before for before, later in zip(found.at_ms, found.at_ms[1:], strict=False)
    } == {8000}


def test_intervals_are_cut_short_where_the_log_begins_and_ends() -> None:
    points = [RatePoint("n", at * 1000, 10, 0, 0, 0) for at in range(801)]
    found = rate_series(points, 1000)
    assert found.interval_ms == 3000
    assert set(found.published) == {10.0}
    cut = rate_series(points[:4], 1000, (250, 3100)).published
    assert cut == pytest.approx((10 / 0.75, 10, 10, 20))
    assert rate_series([], 1000).at_ms == ()


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (1, 1, 4, [1, 2]),
        (7, 7, 4, [5, 10]),
        (30, 45_000, 4, [10, 1000, 100_000]),
        (30, 45_000, 8, [30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000]),
        (32_800, 47_200, 8, [20_000, 50_000]),
        (1, 10**9, 4, [1, 1000, 10**6, 10**9]),
    ],
)
def test_an_axis_of_powers_has_round_numbers(
    low: int, high: int, most: int, expected: list[int]
) -> None:
    assert round_numbers(low, high, most) == expected


def test_a_histogram_begins_and_ends_where_something_is() -> None:
    found = latency_shares(
        [
            LatencyHistogram(1, (1, 2, 4, 8, 16), (0, 3, 0, 1, 0), 2, 8, 7),
            LatencyHistogram(2, (1, 2, 4, 8), (0, 0, 5, 0), 4, 4, 3),
        ]
    )
    assert found.bounds_ms == (2, 4, 8)
    assert found.shares == ((1, (0.75, 0.0, 0.25)), (2, (0.0, 1.0, 0.0)))
    assert latency_shares([LatencyHistogram(1, (1,), (0,), 1, 1, 0)]).shares == ()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1, "2026-May-28 20:26"),
        (240, "20:28"),
        (36_000, "May-29"),
        (86_400 * 40, "Jun"),
        (86_400 * 800, "2028"),
    ],
)
def test_moments_on_the_axis_are_round_and_in_utc(seconds: int, expected: str) -> None:
    span = BEGINS_MS, BEGINS_MS + seconds * 1000
    drawn = time_chart("k", ("t", "n", "l"), [Line("a", span, (1, 2), "a")], "m", span).drawing
    assert expected in drawn


def test_drops_of_all_nodes_are_added_up() -> None:
    found = drops_by_reason(
        [DropCount("a", "x", 1), DropCount("b", "y", 5), DropCount("b", "x", 2)]
    )
    assert found == [("y", 5), ("x", 3)]


def test_spans_of_time_are_short() -> None:
    shown = [findings.milliseconds(value) for value in (0, 1, 999, 1000, 59_999, 60_000, 7_200_000)]
    assert shown == ["0 ms", "1 ms", "999 ms", "1 s", "60 s", "1 min", "2 h"]


def test_a_table_counts_the_cells_of_wide_letters() -> None:
    found = list(
        table_lines(
            ("name", "count", ">size"), [("\u5de5\u5834", 7, "1 B"), ("abcde", None, "20 B")]
        )
    )
    assert found == ["name   count  size", "\u5de5\u5834       7   1 B", "abcde      -  20 B"]


def test_several_nodes_are_distinguished() -> None:
    outcome: Outcome = kept(nodes=2)
    found = text.audit_text(outcome)
    assert "10,000,166 entries of the logs of 2 nodes" in found
    assert found.count("2026-05-28 20:36:40") >= 2
