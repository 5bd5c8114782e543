"""The archive job: which records to archive, and how they become Parquet files."""
