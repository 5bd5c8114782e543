"""The installed version of foldmq."""

import importlib.metadata

try:
    version = importlib.metadata.version("foldmq")
except importlib.metadata.PackageNotFoundError:
    # Running from a checkout that is not installed.
    version = "from source"
