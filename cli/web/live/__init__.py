"""The running broker for the web page: its connection, samples and charts."""
