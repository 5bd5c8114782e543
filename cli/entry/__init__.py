"""Scripts that other programs run: ``spark-submit``."""
