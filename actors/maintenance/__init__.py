"""Recovery, projections, retention, checkpoints, session expiry and attestation."""
