"""Logs as tables: the data source ``foldmq``, its columns and the logs it reads.

Events are read column by column, many records at a time: JSON to numpy and Arrow.
"""
