"""Comparison of brokers: rounds, verdicts, the released version, tables."""
