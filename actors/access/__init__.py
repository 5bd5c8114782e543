"""Who may connect, and what they may publish and subscribe to."""
