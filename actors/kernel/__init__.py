"""The actor kernel: pykka's API on an event loop, with clock, timers and thread priority."""
