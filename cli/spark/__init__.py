"""``foldmq spark`` and the script for ``spark-submit``.

The script that ``spark-submit`` runs.

``foldmq spark``: Spark jobs on a log.
"""
