"""Generated logs of any size, for tests and loads."""
