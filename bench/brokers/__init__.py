"""Brokers to be compared, and a small client of them."""
