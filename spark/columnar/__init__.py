"""Events read column by column: JSON to numpy and Arrow, many records at a time."""
