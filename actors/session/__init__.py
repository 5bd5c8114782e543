"""Sessions: decisions, publishing, routing, subscriptions, delivery and backpressure."""
