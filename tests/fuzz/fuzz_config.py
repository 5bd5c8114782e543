"""Settings in a TOML file: refused in one line, or good for every listener."""

import atexit
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from cli.settings.setting_sources import ConfigError
from cli.settings.settings import load_settings

_, _name = tempfile.mkstemp(prefix="foldmq-fuzz-", suffix=".toml")
FILE = Path(_name)
_owner = os.getpid()


@atexit.register
def _remove() -> None:
    if os.getpid() == _owner:
        FILE.unlink(missing_ok=True)


def one(data: bytes) -> None:
    """Load a file; raises AssertionError if what is wrong with it is not one plain line."""
    FILE.write_bytes(data)
    try:
        settings = load_settings({}, {}, FILE)
    except ConfigError as error:
        message = str(error)
        assert message.isprintable(), "an error is one line without anything that a terminal obeys"
        return
    for own in settings.listeners():
        (place,) = own.listen
        assert str(place.endpoint)
        assert own.max_packet_size >= 1024
        assert own.connect_timeout > 0
    if "nats_password" in settings.model_fields_set:
        assert repr(settings.nats_password) not in repr(settings)
