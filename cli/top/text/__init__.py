"""The figures of ``foldmq top`` as text."""
