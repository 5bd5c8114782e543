"""The facts of an audit: narrow rows made from the records of a log; and the audit's outcome."""
