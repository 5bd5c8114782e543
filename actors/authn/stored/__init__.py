"""Reads stored passwords: Mosquitto's hashes, and SCRAM-SHA-256 keys with their messages."""

from actors.authn.stored import mosquitto_hashes
from actors.authn.stored.scram import (
    ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SALT_SIZE,
    SCRAM_SHA_256,
    DummyKeys,
    ScramError,
    ScramExchange,
    ScramKeys,
    derive_keys,
    parse_scram_keys,
    read_client_first,
    render_keys,
    saslprep,
)

__all__ = [
    "ITERATIONS",
    "MAX_ITERATIONS",
    "MIN_ITERATIONS",
    "SALT_SIZE",
    "SCRAM_SHA_256",
    "DummyKeys",
    "ScramError",
    "ScramExchange",
    "ScramKeys",
    "derive_keys",
    "mosquitto_hashes",
    "parse_scram_keys",
    "read_client_first",
    "render_keys",
    "saslprep",
]
