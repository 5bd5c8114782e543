"""Authentication: password files, JSON Web Tokens, certificates and the auth callout.

``backends`` contains the interface of a backend and the list of all backends.
"""
