"""The running broker for the web page: connection, samples and charts."""
