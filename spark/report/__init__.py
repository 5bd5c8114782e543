"""Reports of an audit: text, JSON, and one HTML page with plots."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.report.figure_style import (
        ROW_HEIGHT,
        Plot,
        add_legend,
        both_widths,
        calm_axes,
        hide_frame,
        number_text,
        short_name,
        shortened,
    )
    from spark.report.findings import span, utc
    from spark.report.html_report import audit_page, render_page
    from spark.report.json_report import audit_json
    from spark.report.series import time_ticks
    from spark.report.svg import COLOURS, axes, require_matplotlib
    from spark.report.text_report import audit_text
    from spark.report.text_table import Cell, table_lines
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "figure_style": (
                "ROW_HEIGHT Plot add_legend both_widths calm_axes hide_frame number_text "
                "short_name shortened"
            ),
            "findings": "span utc",
            "html_report": "audit_page render_page",
            "json_report": "audit_json",
            "series": "time_ticks",
            "svg": "COLOURS axes require_matplotlib",
            "text_report": "audit_text",
            "text_table": "Cell table_lines",
        },
    )

__all__ = [
    "COLOURS",
    "ROW_HEIGHT",
    "Cell",
    "Plot",
    "add_legend",
    "audit_json",
    "audit_page",
    "audit_text",
    "axes",
    "both_widths",
    "calm_axes",
    "hide_frame",
    "number_text",
    "render_page",
    "require_matplotlib",
    "short_name",
    "shortened",
    "span",
    "table_lines",
    "time_ticks",
    "utc",
]
