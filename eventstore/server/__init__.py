"""The NATS servers that foldmq starts: one for the log, and one for NATS clients."""
