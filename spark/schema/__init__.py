"""The columns of the tables and their types."""
