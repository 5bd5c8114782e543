from harness.fixtures import broker, clients, foldmq_only, make_broker, topic

__all__ = ["broker", "clients", "foldmq_only", "make_broker", "topic"]
