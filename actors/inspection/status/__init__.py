"""The status of a broker: counters, gauges, and their Prometheus metrics."""
