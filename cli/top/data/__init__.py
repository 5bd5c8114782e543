"""What ``foldmq top`` polls from the broker."""
