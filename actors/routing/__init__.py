"""The subscription index of a node: finds the subscriptions that match a topic."""
