"""The event log in Spark: a data source, and the jobs that rebuild and audit everything from it.

``spark.datasource.source`` reads the log as tables, in batches and as a stream;
``spark.datasource.log.Log`` is what jobs and notebooks hold of it. Python on executors works on
Arrow batches, never on rows.
"""
