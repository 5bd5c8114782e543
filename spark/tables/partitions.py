"""The partitions of a read: ranges of logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import InputPartition

from spark.runtime.marked_errors import marked_iterator
from spark.tables.options import SourceOptions
from spark.tables.row_filter import PushedFilters

if TYPE_CHECKING:
    import pyarrow as pa


class LogPartition(InputPartition):
    """Ranges of logs read by one task, or other parts; those of one log are in order."""

    def __init__(self, parts: Sequence[Any]) -> None:
        super().__init__(tuple(parts))

    @property
    def parts(self) -> Sequence[Any]:
        """The ranges."""
        return cast("Sequence[Any]", self.value)


def read_partition(
    options: SourceOptions, pushed: PushedFilters, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition; none for Spark's empty partition."""
    # Not imported for planning: the decoder takes a third of a second to import.
    from spark.tables.range_reader import RangeReader

    if not isinstance(partition, LogPartition):
        return iter(())
    lossy = not options.fail_on_data_loss
    reader = RangeReader(options.columns, pushed, options.mode, lossy)
    return marked_iterator(batch for part in partition.parts for batch in reader.read(part))
