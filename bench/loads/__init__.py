"""Loads: those of all brokers, and those that only foldmq has."""
