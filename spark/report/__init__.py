"""Findings and traffic statistics as text, JSON and HTML."""
