"""Records as the rows of the tables: entries, events and records."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.rows.decoder import Decoder, sparse_rows
    from spark.rows.records import record_rows
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "decoder": "Decoder sparse_rows",
            "records": "record_rows",
        },
    )

__all__ = ["Decoder", "record_rows", "sparse_rows"]
