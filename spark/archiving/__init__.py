"""The archive job: selects records to archive, and writes them to Parquet files."""
