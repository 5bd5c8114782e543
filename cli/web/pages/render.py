"""Renders templates; all external text is escaped.

Names and payloads go through ``cli.common.text``: control characters, direction marks and the like
become visible escapes. Jinja escapes the rest for HTML. Each name is in an element of its own, so
that a right-to-left script does not affect the text around it.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cli.commands.receivers import outcome_text
from cli.commands.status import memory_parts
from cli.common import text
from cli.common.package_version import version
from cli.top import number_format
from eventstore.format.positions import format_position
from eventstore.reasons import close_text, close_words, drop_text
from projections.views.replay_view import replay_text
from projections.views.session_text import options_text

_TITLE = 2000
"""Maximum length of a name in a tooltip."""
_SEPARATOR = re.compile(r"(?<=[/_.:-])(?=[^/_.:#+-])")
"""Where a long name may be broken into lines."""
_BREAK = Markup("<wbr>")
_ROW = re.compile(r"<tr.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<(t[dh])\b([^>]*)>(.*?)</\1>", re.DOTALL)
_MARKUP = re.compile(r"<small>.*?</small>|<[^>]*>|&[ud]arr;")
_NOTHING = '<span class="muted">-</span>'


def environment() -> Environment:
    """Return the template environment of this package."""
    made = Environment(
        loader=PackageLoader("cli.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "name": name,
        "labelled": labelled,
        "escaped": text.escaped,
        "count": number_format.count,
        "size": number_format.figure_size,
        "span": number_format.figure_duration,
        "percent": number_format.percent,
        "number": lambda value: f"{value:,}",
        "clock": clock,
        "ago": text.duration,
        "position": format_position,
        "payload": payload,
        "counted": text.count_of,
        "options": options_text,
        "replay": replay_text,
        "outcome": outcome_text,
        "short_log": lambda log: log.rpartition("-")[2],
        "drop_reason": drop_text,
        "memory_parts": memory_parts,
        "close_reason": close_text,
        "close_words": close_words,
    }
    made.globals |= {"url": url, "version": version}
    return made


def name(value: str, limit: int = text.NAME_LIMIT) -> Markup:
    """Return a client identifier, topic or filter, escaped and isolated from the text around it.

    It is broken into lines at its separators only, if they are short enough.
    """
    shown = _BREAK.join(_SEPARATOR.split(text.name(value, limit)))
    if len(value) > limit:
        title = text.name(value, _TITLE)
        return Markup('<bdi class="name" title="{}">{}</bdi>').format(title, shown)
    return Markup('<bdi class="name">{}</bdi>').format(shown)


def labelled(table: str) -> Markup:
    """Return head and body of a table, with the title of its column in each cell that has a value.

    In a narrow window each row is a block of such labelled values.
    """
    head, end, body = str.partition(str.__str__(table), "</thead>")
    titles = [_MARKUP.sub("", cell[3]).strip() for cell in _CELL.finditer(head)]

    def label_row(row: re.Match[str]) -> str:
        remaining_titles = iter(titles)

        def label(cell: re.Match[str]) -> str:
            tag, attributes, content = cell.groups()
            title = next(remaining_titles, "")
            if tag == "td" and content != _NOTHING:
                attributes += f' data-label="{title}"'
            return f"<{tag}{attributes}>{content}</{tag}>"

        return _CELL.sub(label, row[0])

    # All text in the table is escaped.
    return Markup(head + end + _ROW.sub(label_row, body))  # noqa: S704


def clock(time_ms: int | None) -> Markup:
    """Return a time in the zone of the server, with UTC as tooltip."""
    if time_ms is None:
        return Markup("-")
    iso = text.iso(time_ms)
    shown = text.clock(time_ms)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, iso, shown)


def payload(encoded: str, limit: int) -> str:
    """Return a base64 payload as text."""
    return text.payload_text(base64.b64decode(encoded), limit)


def url(path: str, *mappings: Mapping[str, Any], **query: Any) -> str:
    """Return a URL of this page; None, False and empty values are omitted."""
    parameters: dict[str, Any] = {}
    for mapping in (*mappings, query):
        parameters |= mapping
    pairs: list[tuple[str, object]] = []
    for key, value in parameters.items():
        if value is None or value is False or value in ("", []):
            continue
        if isinstance(value, list | tuple):
            pairs += [(key, each) for each in value]
        else:
            pairs.append((key, 1 if value is True else value))
    return path + (f"?{urlencode(pairs)}" if pairs else "")
