"""The digest of permissions depends on the rules, not on their text."""

from pathlib import Path

import pytest

from actors.access.rules import Permissions
from actors.access.rules_file import parse_rules

RULES = """
[groups]
ops = ["ann", "bob"]
[[allow]]
groups = ["ops"]
both = ["a/#", "b/#"]
[[deny]]
publish = ["a/x"]
"""
SAME = """
# The same, in another order.
[[deny]]
publish = ["a/x"]
[[allow]]
both = ["b/#", "a/#"]
groups = ["ops"]
[groups]
ops = ["bob", "ann"]
"""


def digest(text: str) -> str:
    return parse_rules(Path("rules.toml"), text).digest


def test_without_rules_there_is_no_digest() -> None:
    assert Permissions().digest == ""


def test_comments_order_and_places_do_not_count() -> None:
    assert digest(RULES) == digest(SAME) != ""


@pytest.mark.parametrize(
    ("old", "new"),
    [("a/x", "a/y"), ("publish", "both"), ("deny", "allow"), ('"bob"', '"eve"'), ("b/#", "b/+")],
)
def test_every_other_change_counts(old: str, new: str) -> None:
    assert digest(RULES.replace(old, new)) != digest(RULES)
