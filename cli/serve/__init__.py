"""``foldmq serve``: puts the broker together, in one process or several.

With ``--processes N`` the main process accepts connections, reads the client identifier of each
CONNECT, and passes the socket or the bytes to the process that has the client's session. It starts
the processes, and restarts those that end.
"""
