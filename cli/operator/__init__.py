"""The commands that look into a running broker and change it."""
