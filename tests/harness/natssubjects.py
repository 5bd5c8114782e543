"""Matching of NATS subjects, by the rules of a NATS server."""


def nats_matches(pattern: str, subject: str) -> bool:
    """What a NATS Server does with a subscription."""
    wanted, there = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(there) <= len(wanted):
            return False
        there = there[: len(wanted)]
    return len(wanted) == len(there) and all(
        w in ("*", t) for w, t in zip(wanted, there, strict=True)
    )
