"""The plots of the HTML page, each drawn for a wide and for a narrow window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from eventstore.display import name
from spark.report import findings
from spark.report.findings import milliseconds
from spark.report.series import (
    drops_by_reason,
    latency_shares,
    rate_series,
    round_numbers,
    time_ticks,
)
from spark.report.svg import COLOURS, axes, draw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from spark.audit.facts import Outcome, SlowSession
    from spark.report.series import LatencyShares, RateSeries

SLOWEST: Final = 10
"""Number of sessions in the plot."""
REASONS: Final = 8
_WIDE, _NARROW = 8.6, 3.4  # inches
_ROW = 0.32


class Plot(NamedTuple):
    """A plot and its caption."""

    title: str
    note: str
    wide: Markup
    narrow: Markup


def plots(outcome: Outcome) -> dict[str, Plot | None]:
    """Return the plots by name, None for those without data; raises NoPlots."""
    found: dict[str, Plot | None] = dict.fromkeys(("rates", "latencies", "slowest", "drops"))
    over_time = rate_series(outcome.rates, outcome.interval_ms, findings.extent_ms(outcome))
    if over_time.at_ms:
        found["rates"] = _rates(over_time)
    latencies = latency_shares(outcome.latencies)
    if latencies.shares:
        found["latencies"] = _latencies(latencies)
    if outcome.slowest:
        found["slowest"] = _slowest(outcome.slowest[:SLOWEST])
    reasons = drops_by_reason(outcome.drops)
    if reasons:
        found["drops"] = _drops(reasons[:REASONS])
    return found


def _both(
    key: str,
    title: str,
    note: str,
    label: str,
    height: float,
    fill: Callable[[Figure, bool], None],
) -> Plot:
    wide = draw(f"{key}-w", label, (_WIDE, height), lambda figure: fill(figure, False))
    narrow = draw(f"{key}-n", label, (_NARROW, height), lambda figure: fill(figure, True))
    return Plot(title, note, wide, narrow)


def _rates(over_time: RateSeries) -> Plot:
    lines = (
        ("published", over_time.published, "a", "-"),
        ("delivered", over_time.delivered, "b", "-"),
        ("acknowledged", over_time.completed, "c", "--"),
    )
    # The average over an interval is drawn at its middle.
    middle = over_time.interval_ms / 2
    times = [at + middle for at in over_time.at_ms]
    marker = "o" if len(times) == 1 else ""

    def fill(figure: Figure, narrow: bool) -> None:
        dropped = any(over_time.dropped)
        heights = (4, 1.3) if dropped else (1,)
        panes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
        upper, lowest = panes[0][0], panes[-1][0]
        for title, values, colour, dash in lines:
            upper.plot(
                times, values, color=COLOURS[colour], lw=1.5, ls=dash, marker=marker, label=title
            )
        _calm(upper, "messages/s")
        _legend(figure, upper, narrow=narrow)
        if dropped:
            lowest.bar(
                times, over_time.dropped, width=over_time.interval_ms * 0.95, color=COLOURS["d"]
            )
            _calm(lowest, "dropped/s")
        marks = time_ticks(over_time.at_ms[0], over_time.ends_ms, 4 if narrow else 9)
        lowest.set_xticks([at for at, _ in marks], [title for _, title in marks])
        lowest.set_xlim(over_time.at_ms[0], over_time.ends_ms)

    label = (
        f"Rates over time. Highest: published {max(over_time.published):,.0f}, delivered "
        f"{max(over_time.delivered):,.0f}, acknowledged {max(over_time.completed):,.0f}, dropped "
        f"{max(over_time.dropped):,.0f} messages a second"
    )
    note = (
        "Messages a second at QoS 1 and 2, and retained ones at QoS 0, averages over "
        f"{milliseconds(over_time.interval_ms)}. Times are UTC."
    )
    return _both("rates", "Rates", note, label, 3.0, fill)


def _latencies(found: LatencyShares) -> Plot:
    places = range(len(found.bounds_ms))
    names = [milliseconds(bound) for bound in found.bounds_ms]
    width = 0.8 / len(found.shares)

    def fill(figure: Figure, narrow: bool) -> None:
        pane = axes(figure)
        for number, (qos, shares) in enumerate(found.shares):
            shift = (number - (len(found.shares) - 1) / 2) * width
            pane.bar(
                [place + shift for place in places],
                [share * 100 for share in shares],
                width=width,
                color=COLOURS["a" if qos == 1 else "b"],
                label=f"QoS {qos}",
            )
        # A bound is the end of its bar and the beginning of the next one.
        every = -(-len(names) // (5 if narrow else 12))
        pane.set_xticks([place + 0.5 for place in places][::every], names[::every])
        _calm(pane, "% of deliveries")
        if len(found.shares) > 1:
            _legend(figure, pane, narrow=narrow)

    label = "Deliveries by the time from publication to acknowledgement: the table has the figures"
    note = (
        "From the publication of a message (at QoS 2: its release) to the PUBACK or PUBCOMP of "
        "its receiver, in the time of the log."
    )
    return _both("latencies", "From publication to acknowledgement", note, label, 2.6, fill)


def _slowest(sessions: Sequence[SlowSession]) -> Plot:
    # 0 ms has no place on a logarithmic axis.
    spans = [[max(1, value) for value in (one.p50_ms, one.p99_ms, one.max_ms)] for one in sessions]

    def fill(figure: Figure, narrow: bool) -> None:
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
        shown = [_short_name(one.session, 13 if narrow else 32) for one in sessions]
        pane.set_yticks(rows, shown, color=COLOURS["text"])
        pane.invert_yaxis()
        low, high = min(map(min, spans)), max(map(max, spans))
        marks = round_numbers(low, high, 4 if narrow else 8)
        pane.set_xscale("log")
        pane.set_xticks(marks, map(milliseconds, marks))
        pane.minorticks_off()
        room = (max(high, marks[-1]) / min(low, marks[0])) ** 0.04
        pane.set_xlim(min(low, marks[0]) / room, max(high, marks[-1]) * room)
        pane.margins(y=0.5 / len(sessions))
        _no_frame(pane)
        _legend(figure, pane, narrow=narrow)

    height = 0.9 + _ROW * len(sessions)
    note = "The sessions with the longest times from publication to acknowledgement, slowest first."
    return _both(
        "slowest", "Slowest sessions", note, f"{note} The table has the figures", height, fill
    )


def _drops(reasons: Sequence[tuple[str, int]]) -> Plot:
    def fill(figure: Figure, narrow: bool) -> None:
        pane = axes(figure, grid="x")
        rows = range(len(reasons))
        bars = pane.barh(rows, [count for _, count in reasons], height=0.6, color=COLOURS["d"])
        pane.bar_label(bars, [f"{count:,}" for _, count in reasons], padding=4)
        shown = [_short_name(reason, 16 if narrow else 32) for reason, _ in reasons]
        pane.set_yticks(rows, shown, color=COLOURS["text"])
        pane.invert_yaxis()
        pane.margins(x=0.25 if narrow else 0.1)
        pane.set_xticks([])
        pane.grid(visible=False)
        _no_frame(pane)

    label = "Dropped messages by reason: " + ", ".join(
        f"{name(reason)} {count:,}" for reason, count in reasons
    )
    note = "Messages that matched a subscription and will not be delivered; each is on record."
    return _both("drops", "Dropped, by reason", note, label, 0.35 + _ROW * len(reasons), fill)


def _calm(pane: Axes, unit: str) -> None:
    """Start the axis at 0, shorten large numbers, and hide unnecessary lines."""
    pane.set_ylim(bottom=0)
    pane.set_ylabel(unit)
    pane.yaxis.set_major_formatter(lambda value, _: _short(value))
    pane.grid(visible=True, axis="y", linewidth=0.7)
    pane.grid(visible=False, axis="x")
    pane.tick_params(length=0)
    pane.spines["left"].set_visible(False)


def _legend(figure: Figure, pane: Axes, *, narrow: bool) -> None:
    """Add a legend above the plot."""
    figure.legend(
        *pane.get_legend_handles_labels(),
        loc="outside upper left",
        ncols=3,
        borderaxespad=0,
        borderpad=0.1,
        handlelength=1.3,
        handletextpad=0.4,
        columnspacing=0.9,
        fontsize=8 if narrow else 9,
    )


def _short_name(text: str, most: int) -> str:
    """Return a shortened name; the table has the full one."""
    shown = name(text, 4 * most)
    return shown if len(shown) <= most else shown[: most - 1] + "\u2026"


def _no_frame(pane: Axes) -> None:
    for side in ("left", "bottom"):
        pane.spines[side].set_visible(False)


def _short(value: float) -> str:
    for one, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= one:
            return f"{value / one:.3g}{unit}"
    return f"{value:.3g}"
