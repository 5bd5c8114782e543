"""Tokens, roles and the audit trail of the web page."""
