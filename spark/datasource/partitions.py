"""What Spark hands to tasks: ranges of logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import InputPartition

from spark.runtime.marked_errors import marked_iterator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from spark.columnar.row_filter import Pushed
    from spark.datasource.options import Options
    from spark.storage.stored_log import Range


class LogPartition(InputPartition):
    """A range of a log that one task reads."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)

    @property
    def part(self) -> Range:
        """The range."""
        return cast("Range", self.value)


def read(options: Options, pushed: Pushed, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition; none for the one that Spark makes when there is none."""
    # Who only plans needs nothing of what decodes, and that takes a third of a second to import.
    from spark.datasource.range_reader import Reading

    if not isinstance(partition, LogPartition):
        return iter(())
    return marked_iterator(Reading(options.columns, pushed, options.mode).read(partition.part))
