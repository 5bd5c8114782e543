"""The ``nats-server`` processes that foldmq starts: program, ports, TLS, users, recovery."""
