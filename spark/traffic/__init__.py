"""Traffic statistics of a log, and their report."""
