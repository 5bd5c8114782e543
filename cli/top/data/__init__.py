"""What ``foldmq top`` asks of the broker, and its connection."""
