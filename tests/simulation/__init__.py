"""The broker on a virtual event loop, clock, network and log: deterministic random runs."""
