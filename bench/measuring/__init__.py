"""Metrics and targets, runs of the load generator, and rows of the tables."""
