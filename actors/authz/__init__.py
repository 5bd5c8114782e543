"""Authorization: which topics a client may publish and subscribe to."""
