"""The stored form of the projections."""
