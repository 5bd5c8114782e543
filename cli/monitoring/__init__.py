"""Monitoring of a broker: metrics, health, systemd notification and the NATS micro service."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.monitoring.http_monitor import HttpMonitor
    from cli.monitoring.microservice import serve_inspector
    from cli.monitoring.systemd_notify import Notifier
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "http_monitor": "HttpMonitor",
            "microservice": "serve_inspector",
            "systemd_notify": "Notifier",
        },
    )

__all__ = ["HttpMonitor", "Notifier", "serve_inspector"]
