"""Who may connect, and what each client may do: authentication and permissions."""
