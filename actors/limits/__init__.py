"""What keeps the broker up whoever connects: bounds on clients, and what happens at each."""
