"""Sessions: decisions, publishing, routing, subscriptions, delivery and back-pressure."""
