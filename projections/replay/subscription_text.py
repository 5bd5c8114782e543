"""Subscription options as text."""

_HANDLING = {0x10: " retained if new", 0x20: " nothing retained"}


def options_text(bits: int) -> str:
    """Return the subscription options of MQTT 5 that are set, each preceded by a blank."""
    words = [" no local"] if bits & 0x04 else []
    words += [" retain as published"] if bits & 0x08 else []
    return "".join([*words, _HANDLING.get(bits & 0x30, "")])
