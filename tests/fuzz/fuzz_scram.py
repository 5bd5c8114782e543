"""SCRAM: every message of a client is refused, unless it is that of the user with the keys.

The first byte determines the meaning of the rest: the first message, the last one to a fixed
challenge, or the keys of a password file.
"""

import contextlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from actors.access import scram

KEYS = scram.derive_keys(b"pencil", 4096, b"a salt of 16 byt")
FIRST = scram.read_client_first(b"n,,n=user,r=client")


def one(data: bytes) -> None:
    """Try one input; raises AssertionError for what is wrong."""
    kind, rest = data[:1], data[1:]
    if kind == b"F":
        with contextlib.suppress(scram.ScramError):
            first = scram.read_client_first(rest)
            assert first.header + first.bare == rest, "nothing of it is left out"
            assert first.user
            challenge = scram.ScramExchange(first, KEYS).challenge.decode("ascii")
            assert challenge.count(",") == 2, "no nonce adds an attribute"
    elif kind == b"L":
        with contextlib.suppress(scram.ScramError):
            answer = scram.ScramExchange(FIRST, KEYS, "server").verify(rest)
            assert answer == RIGHT, "only who knows the password gets in"
    else:
        with contextlib.suppress(UnicodeDecodeError):
            keys = scram.parse_scram_keys(data.decode())
            if keys is not None:
                assert scram.parse_scram_keys(scram.render_keys(keys)) == keys


RIGHT = b"v=wA8EJFEzSicur/XMTETZxN83AUpOhz9CWO9+17MRKMo="
