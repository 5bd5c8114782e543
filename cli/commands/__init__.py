"""The commands for a running broker and for its log, one module each."""
