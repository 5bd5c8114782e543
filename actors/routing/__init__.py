"""The subscription index of a node: from a topic to the subscriptions that match it."""
