"""The past for the web page, read from the log in the background: sessions, minutes, marks."""
