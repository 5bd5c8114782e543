"""The bridges of several logs: the home of a topic, and the reports between them."""
