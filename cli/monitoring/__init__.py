"""What a running broker tells those who watch over it: metrics, health, systemd, NATS."""
