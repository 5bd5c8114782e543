"""Who may connect, and what each client may do: authentication and permissions.

Authentication: password files, JSON Web Tokens, certificates and the auth callout.

``backends`` contains the interface of a backend and the list of all backends.

Reads stored passwords: Mosquitto's hashes, and SCRAM-SHA-256 keys with their messages.

Authorization: which topics a client may publish and subscribe to.
"""
