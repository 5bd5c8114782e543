"""Subscription options as text."""

from protocol.mqtt.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, RETAIN_HANDLING

_HANDLING = {0x10: " retained if new", 0x20: " nothing retained"}


OF_MEMBERS = "each member with its own QoS"
"""In place of a granted QoS: the session of a shared subscription has none."""


def options_text(bits: int) -> str:
    """Return the subscription options of MQTT 5 that are set, each preceded by a blank."""
    words = [" no local"] if bits & NO_LOCAL else []
    words += [" retain as published"] if bits & RETAIN_AS_PUBLISHED else []
    return "".join([*words, _HANDLING.get(bits & RETAIN_HANDLING, "")])
