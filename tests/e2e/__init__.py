"""End-to-end tests of a whole broker: client libraries, restarts, crashes, the command line."""
