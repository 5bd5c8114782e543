"""Shared subscriptions: sessions without a connection that divide messages among members."""
