"""Messages between the nodes of a cluster, over the connection of their log."""
