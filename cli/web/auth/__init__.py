"""The tokens and roles of the web page, and the audit trail of their use."""
