"""The running broker as the web page sees it: its connection, samples and charts."""
