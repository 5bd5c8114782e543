"""Recovery, projections, retention, checkpoints, expiry, and digests of the state."""
