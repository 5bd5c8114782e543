"""The inspector: questions about a running broker, operators' changes, and ``$SYS`` topics."""
