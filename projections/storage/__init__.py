"""The stored form of the projections, and how they are loaded."""
