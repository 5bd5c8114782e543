"""The version of foldmq that is installed."""

import importlib.metadata

try:
    version = importlib.metadata.version("foldmq")
except importlib.metadata.PackageNotFoundError:
    # Run from a checkout that is not installed.
    version = "from source"
