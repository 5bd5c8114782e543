"""The index of a log: built from its records, and used to answer queries without a full scan."""
