"""Logs as tables: the data source ``foldmq``, its columns and the logs it reads.

Events are read by the broker's own parser, and become columns of many records at a time.
"""
