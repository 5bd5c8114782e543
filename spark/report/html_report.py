"""The report of an audit as one HTML page: self-contained, without scripts, printable."""

from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from eventstore import display
from eventstore.format.positions import format_position
from projections.audit.audit_outcome import Outcome
from spark.report import findings
from spark.report.plots import plots

VIOLATIONS: Final = 100
"""Maximum violations shown for each rule."""
SLOWEST: Final = 20
_NAME: Final = 48
_TITLE: Final = 2000


def audit_page(outcome: Outcome, complete: Callable[[str], str] = str) -> str:
    """Return the page; the same outcome gives the same page. Raises NoPlots without matplotlib.

    ``complete`` adds the flags that select the log to a command.
    """
    return render_page(
        "report.html",
        outcome=outcome,
        complete=complete,
        found=findings.verdict(outcome).partition(": ")[2],
        not_proven=findings.not_proven(outcome),
        entries=findings.entry_count(outcome),
        broken=findings.broken_rules(outcome, VIOLATIONS),
        several=len(outcome.nodes) > 1,
        violations=sum(rule.violations for rule in outcome.rules),
        records=sum(node.records for node in outcome.nodes),
        stored=sum(node.bytes for node in outcome.nodes),
        plots=plots(outcome),
        dropped=sum(drop.count for drop in outcome.drops),
        slowest=outcome.slowest[:SLOWEST],
    )


def render_page(template: str, **values: Any) -> str:
    """Return the page that a template of this package makes of some values."""
    return _environment().get_template(template).render(**values, version=_version())


def _version() -> str:
    try:
        return version("foldmq")
    except PackageNotFoundError:
        return "unknown"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("spark.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "name": _name,
        "number": lambda value: f"{value:,}",
        "size": display.size,
        "counted": display.count_of,
        "escaped": lambda text: display.escaped(text, 500),
        "position": format_position,
        "span": findings.milliseconds,
        "utc": _utc,
        "what": findings.violation_text,
        "next_step": findings.next_step,
    }
    return made


def _name(value: str, limit: int = _NAME) -> Markup:
    """Return a name chosen by a client, escaped and isolated from the text around it."""
    text = display.name(value, limit)
    if len(value) > limit:
        title = display.name(value, _TITLE)
        return Markup('<bdi class="name" title="{}">{}</bdi>').format(title, text)
    return Markup('<bdi class="name">{}</bdi>').format(text)


def _utc(time_ms: int) -> Markup:
    text = findings.utc(time_ms)
    return Markup('<time datetime="{}">{}</time>').format(display.iso(time_ms), text)
