"""Where logs are stored: in NATS or in an archive of Parquet files."""
