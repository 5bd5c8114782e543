"""Helpers of commands: terminal text, tables, units, logging and memory."""
