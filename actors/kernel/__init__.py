"""pykka's programming model on an event loop: see ``DESIGN.md`` beside this file."""
