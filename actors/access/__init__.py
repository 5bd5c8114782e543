"""Who may connect, and what each client may do: see ``DESIGN.md`` beside this file."""
