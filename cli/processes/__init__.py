"""Several broker processes behind the same listeners: ``--processes N`` and ``--partitions P``.

The main process accepts connections, reads the client identifier of each CONNECT, and passes the
socket or the bytes to the process that has the client's session. It starts the processes, and
restarts those that end. In a cluster with several logs, that process may be one of another node.
"""
