"""Makes Spark find the data source ``foldmq`` by itself: it looks for modules ``pyspark_*``."""

import foldmq  # noqa: F401 - in a wheel, the path of the packages
from spark.tables.source import FoldmqSource


class DefaultSource(FoldmqSource):
    """The data source under the name by which Spark looks for it."""
