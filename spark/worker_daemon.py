"""The process from which Spark forks its Python workers, with all their modules imported.

Without it each worker imports Arrow, pandas and foldmq itself: two seconds of processor time, in
each of several workers of every job. PySpark's own daemon imports nothing, because libraries may
start threads, which a fork does not copy. The libraries used here allow it: OpenBLAS is configured
to start none, and the fork handles the thread of Arrow's allocator.
"""

import gc
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

from spark.jobs.archive_job import archive
from spark.jobs.fact_tables import FactTables
from spark.jobs.jobs import rebuild
from spark.jobs.pipeline import audit
from spark.jobs.recovery_job import recovery_check
from spark.report.traffic_stats import measure_traffic
from spark.tables.source import FoldmqSource

WORK = (FactTables, FoldmqSource, archive, audit, measure_traffic, rebuild, recovery_check)
"""Entry points that import everything used in workers."""

if __name__ == "__main__":
    gc.freeze()  # the pages stay shared
    manager()
