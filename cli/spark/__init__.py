"""``foldmq spark`` and the script for ``spark-submit``."""
