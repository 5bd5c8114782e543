"""Changes by operators on the web page: confirmed twice, and recorded with the token's name."""
