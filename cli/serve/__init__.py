"""``foldmq serve``: puts the broker together, in one process or several.

``foldmq serve``: builds the broker from the settings and runs it.

Monitoring of a broker: metrics, health, systemd notification and the NATS micro service.

Several broker processes behind the same listeners: ``--processes N`` and ``--partitions P``.

The main process accepts connections, reads the client identifier of each CONNECT, and passes the
socket or the bytes to the process that has the client's session. It starts the processes, and
restarts those that end. In a cluster with several logs, that process may be one of another node.

Factories: parts of a node, built from the settings.

Access, limits, listeners, options of the broker, and connections between nodes.
"""
