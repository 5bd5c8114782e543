"""The format of the log: events, positions, and the records that hold events."""
