"""The jobs on a log: audit, recovery check, rebuild, archive.

The audit reads the log once and converts its records into *facts*, narrow rows that are kept on
disk; everything else is computed from facts. Logs that fit into the memory of one process are
audited there, without Spark (``local_facts``). ``rebuild`` folds sessions by the broker's own fold.
"""
