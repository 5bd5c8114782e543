"""The process that Spark forks its Python workers from, with all that they need imported.

Without it each worker imports Arrow, pandas and foldmq itself: two seconds of a processor, in each
of several workers of every job. PySpark's own daemon imports nothing, because libraries may start
threads, which a fork does not copy. Those used here allow it: OpenBLAS is told to start none, and
the thread of Arrow's allocator is one that a fork expects.
"""

import gc
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

from spark.archiving import archive
from spark.audit import audit
from spark.datasource import FoldmqSource
from spark.rebuild import rebuild
from spark.recovery import recovery_check
from spark.traffic import measure_traffic

WORK = (FoldmqSource, archive, audit, measure_traffic, rebuild, recovery_check)
"""What imports all that runs in workers."""

if __name__ == "__main__":
    gc.freeze()  # the pages stay shared
    manager()
