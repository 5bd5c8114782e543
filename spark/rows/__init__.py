"""The rows of the tables: entries, events and records."""
