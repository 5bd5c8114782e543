"""Reads events column by column, many records at a time: JSON to numpy and Arrow."""
