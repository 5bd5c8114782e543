"""The outbox: passes the messages of a log on to destinations, each from its own cursor."""
