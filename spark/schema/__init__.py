"""The columns of the tables and their types, for Spark and for Arrow."""
