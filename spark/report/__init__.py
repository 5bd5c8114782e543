"""Reports of an audit: text, JSON, and one HTML page with plots."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.report.findings import span, utc
    from spark.report.html_report import audit_page
    from spark.report.json_report import audit_json
    from spark.report.svg import require_matplotlib
    from spark.report.text_report import audit_text
    from spark.report.text_table import Cell, table_lines
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "findings": "span utc",
            "html_report": "audit_page",
            "json_report": "audit_json",
            "svg": "require_matplotlib",
            "text_report": "audit_text",
            "text_table": "Cell table_lines",
        },
    )

__all__ = [
    "Cell",
    "audit_json",
    "audit_page",
    "audit_text",
    "require_matplotlib",
    "span",
    "table_lines",
    "utc",
]
