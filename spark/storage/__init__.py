"""The stored logs that Spark reads: in NATS, or in an archive of Parquet files."""
