"""The columns of the tables and their types, for Spark and for Arrow."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.schema.arrow_types import ENTRIES, EVENTS, GRAINS, RECORDS, schema_of
    from spark.schema.columns import Columns
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "arrow_types": "ENTRIES EVENTS GRAINS RECORDS schema_of",
            "columns": "Columns",
        },
    )

__all__ = ["ENTRIES", "EVENTS", "GRAINS", "RECORDS", "Columns", "schema_of"]
