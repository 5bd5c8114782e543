"""Live traces of what actors receive, send and append to the log."""
