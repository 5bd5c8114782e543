"""Work in the background: recovery, projections, retention, attestation and expiry."""
