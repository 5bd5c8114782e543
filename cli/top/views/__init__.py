"""The views of ``foldmq top`` on the terminal."""
