"""Logs as tables: the data source ``foldmq``, its columns and the logs it reads.

Reads events column by column, many records at a time: JSON to numpy and Arrow.

The data source ``foldmq``: options, planning, pushdown, batches and streams.

Records as the rows of the tables: entries, events and records.

The columns of the tables and their types, for Spark and for Arrow.

The stored logs that Spark reads: in NATS, or in an archive of Parquet files.
"""
