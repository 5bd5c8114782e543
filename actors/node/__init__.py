"""The counters of the node, and the reasons why a connection is not read."""
