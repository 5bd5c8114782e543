"""Comparison of brokers: rounds, failed rows, the released version, tables."""
