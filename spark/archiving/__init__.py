"""The archive job: from logs in NATS to Parquet files."""
