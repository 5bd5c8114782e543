"""The stored form of the projections, and the loader that reads it."""
