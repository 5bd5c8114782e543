"""The commands that show a running broker: actors, sessions, retained messages and traces."""
