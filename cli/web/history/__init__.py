"""The history of a session, folded in the background for the web page."""
