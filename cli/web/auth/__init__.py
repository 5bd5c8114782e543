"""Who may see the web page: its tokens, and the audit trail of their use."""
