"""Parts of a node: counters, backpressure, operator commands, activation of frozen sessions."""
