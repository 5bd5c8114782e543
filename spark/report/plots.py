"""The charts of the page of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from eventstore.display import name
from projections.audit.audit_outcome import Outcome, SlowSession
from spark.report import findings
from spark.report.charts import (
    COLOURS,
    ROW_HEIGHT,
    Line,
    Plot,
    add_legend,
    axes,
    bar_chart,
    calm_axes,
    draw,
    name_rows,
    short_name,
    time_chart,
)
from spark.report.findings import milliseconds
from spark.report.series import (
    LatencyShares,
    RateSeries,
    drops_by_reason,
    latency_shares,
    rate_series,
    round_numbers,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SLOWEST: Final = 10
"""Number of sessions in the plot."""
REASONS: Final = 8


def plots(outcome: Outcome) -> dict[str, Plot | None]:
    """Return the plots by name, None for those without data; raises NoPlots."""
    by_name: dict[str, Plot | None] = dict.fromkeys(("rates", "latencies", "slowest", "drops"))
    over_time = rate_series(outcome.rates, outcome.interval_ms, findings.extent_ms(outcome))
    if over_time.at_ms:
        by_name["rates"] = _rates(over_time)
    latencies = latency_shares(outcome.latencies)
    if latencies.shares:
        by_name["latencies"] = _latencies(latencies)
    if outcome.slowest:
        by_name["slowest"] = _slowest(outcome.slowest[:SLOWEST])
    reasons = drops_by_reason(outcome.drops)
    if reasons:
        by_name["drops"] = _drops(reasons[:REASONS])
    return by_name


def _rates(over_time: RateSeries) -> Plot:
    # The average over an interval is drawn at its middle.
    times = [at + over_time.interval_ms / 2 for at in over_time.at_ms]
    lines = [
        Line("published", times, over_time.published, "a"),
        Line("delivered", times, over_time.delivered, "b"),
        Line("acknowledged", times, over_time.completed, "c", "--"),
    ]
    label = (
        f"Rates over time. Highest: published {max(over_time.published):,.0f}, delivered "
        f"{max(over_time.delivered):,.0f}, acknowledged {max(over_time.completed):,.0f}, dropped "
        f"{max(over_time.dropped):,.0f} messages a second"
    )
    note = (
        "Messages a second at QoS 1 and 2, and retained ones at QoS 0, averages over "
        f"{milliseconds(over_time.interval_ms)}. Times are UTC."
    )
    dropped = (over_time.dropped, over_time.interval_ms * 0.95) if any(over_time.dropped) else None
    span = (over_time.at_ms[0], over_time.ends_ms)
    return time_chart("rates", ("Rates", note, label), lines, "messages/s", span, dropped=dropped)


def _latencies(latencies: LatencyShares) -> Plot:
    places = range(len(latencies.bounds_ms))
    names = [milliseconds(bound) for bound in latencies.bounds_ms]
    width = 0.8 / len(latencies.shares)

    def fill(figure: Figure) -> None:
        pane = axes(figure)
        for number, (qos, shares) in enumerate(latencies.shares):
            shift = (number - (len(latencies.shares) - 1) / 2) * width
            pane.bar(
                [place + shift for place in places],
                [share * 100 for share in shares],
                width=width,
                color=COLOURS["a" if qos == 1 else "b"],
                label=f"QoS {qos}",
            )
        # A bound is the end of its bar and the beginning of the next one.
        every = -(-len(names) // 12)
        pane.set_xticks([place + 0.5 for place in places][::every], names[::every])
        calm_axes(pane, "% of deliveries")
        if len(latencies.shares) > 1:
            add_legend(figure, pane)

    label = "Deliveries by the time from publication to acknowledgement: the table has the figures"
    note = (
        "From the publication of a message (at QoS 2: its release) to the PUBACK or PUBCOMP of "
        "its receiver, in the time of the log."
    )
    return draw("latencies", "From publication to acknowledgement", note, label, 2.6, fill)


def _slowest(sessions: Sequence[SlowSession]) -> Plot:
    # 0 ms has no place on a logarithmic axis.
    spans = [
        [max(1, value) for value in (session.p50_ms, session.p99_ms, session.max_ms)]
        for session in sessions
    ]

    def fill(figure: Figure) -> None:
        pane = axes(figure, grid="x")
        rows = range(len(sessions))
        pane.hlines(
            rows,
            *zip(*((half, most) for half, _, most in spans), strict=True),
            color=COLOURS["line"],
            linewidth=5,
        )
        for at, colour, marker, label in (
            (0, "a", "o", "half within"),
            (1, "b", "D", "99 % within"),
            (2, "d", "|", "longest"),
        ):
            pane.plot(
                [span[at] for span in spans],
                rows,
                marker,
                color=COLOURS[colour],
                label=label,
                markersize=9 if marker == "|" else 5,
                markeredgewidth=2 if marker == "|" else 0,
            )
        name_rows(pane, [short_name(session.session) for session in sessions])
        low, high = min(map(min, spans)), max(map(max, spans))
        marks = round_numbers(low, high, 8)
        pane.set_xscale("log")
        pane.set_xticks(marks, map(milliseconds, marks))
        pane.minorticks_off()
        room = (max(high, marks[-1]) / min(low, marks[0])) ** 0.04
        pane.set_xlim(min(low, marks[0]) / room, max(high, marks[-1]) * room)
        pane.margins(y=0.5 / len(sessions))
        add_legend(figure, pane)

    height = 0.9 + ROW_HEIGHT * len(sessions)
    note = "The sessions with the longest times from publication to acknowledgement, slowest first."
    return draw(
        "slowest", "Slowest sessions", note, f"{note} The table has the figures", height, fill
    )


def _drops(reasons: Sequence[tuple[str, int]]) -> Plot:
    label = "Dropped messages by reason: " + ", ".join(
        f"{name(reason)} {count:,}" for reason, count in reasons
    )
    note = "Messages that matched a subscription and will not be delivered; each is recorded."
    return bar_chart(
        "drops",
        ("Dropped, by reason", note, label),
        [short_name(reason) for reason, _ in reasons],
        [("dropped", "d", [count for _, count in reasons])],
        "{:,}".format,
    )
