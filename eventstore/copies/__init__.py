"""Copies of logs: what is left of a damaged one, and backups."""
