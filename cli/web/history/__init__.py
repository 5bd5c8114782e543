"""The history of a session for the web page, folded from the log in the background."""
