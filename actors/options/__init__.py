"""The options of the broker, its limits and its bridge, already validated."""
