"""Records as the rows of the tables: entries, events and records."""
