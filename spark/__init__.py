"""The event log in Spark: a data source, and the jobs that rebuild and audit the log.

``spark.tables`` reads the log as tables, in batches and as a stream; jobs and notebooks use its
``Log``. Python on executors works on Arrow batches, never on rows.
"""
