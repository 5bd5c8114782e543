"""Sessions: decisions, publishing, routing and delivery."""
