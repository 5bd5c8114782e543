"""Authentication: password files, JSON Web Tokens, certificates and the auth callout."""
