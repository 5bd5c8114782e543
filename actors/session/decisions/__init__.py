"""Decisions of a session: pure functions from its state and a request to events.

They do not change the state or read a clock; the caller appends the events and applies them.
"""
