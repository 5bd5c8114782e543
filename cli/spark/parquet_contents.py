"""The contents of a Parquet file as bytes, to search them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet

_ROWS: Final = 256


def contents(path: Path) -> Iterator[bytes]:
    """Yield the bytes of all columns, some rows at a time. Raises ValueError for a damaged file."""
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(_ROWS):
                for column in batch.columns:
                    yield from (buffer.to_pybytes() for buffer in column.buffers() if buffer)
    except (OSError, pa.ArrowException, LookupError, TypeError) as error:
        raise ValueError(f"it is a damaged Parquet file: {error}") from None
