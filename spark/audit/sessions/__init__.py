"""The audit of sessions: their expected messages, and whether their events keep the guarantees."""
