"""The logs that commands read: where they are, how they are folded, and events as text."""
