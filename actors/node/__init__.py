"""What all actors of a node share."""
