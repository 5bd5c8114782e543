"""Live traces: what actors get, send and append, for whoever looks on."""
