"""What a session, a retained message and a node are: typed rows, their JSON and their text."""
