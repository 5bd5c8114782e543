"""Attacks on a broker, the well-behaved clients beside them, and their outcomes."""
