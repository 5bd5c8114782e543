"""The ``foldmq`` command: settings, composition root, and a small MQTT client for a first try."""

import importlib.metadata

try:
    version = importlib.metadata.version("foldmq")
except importlib.metadata.PackageNotFoundError:
    # Run from a checkout that is not installed.
    version = "from source"
