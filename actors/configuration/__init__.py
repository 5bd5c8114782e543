"""The validated options of the broker, its limits and its bridge."""
