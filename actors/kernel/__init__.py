"""The actor kernel: pykka's programming model on an event loop, with its clock and timers."""
