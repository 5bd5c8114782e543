"""Names that nearly match one that does not exist."""

import pytest

from actors.inspection.inspector import NameSimilarity


@pytest.mark.parametrize(
    ("name", "other", "suggested"),
    [
        ("panel", "Panel", True),
        ("pump-7", "pump_7", True),
        ("panel", "pane", True),
        ("panel", "lamp", False),
        ("panel", "panel-in-the-hall", False),
        ("", "a", False),
        ("a", "", False),
        ("a" * 500, "a" * 501, False),
    ],
)
def test_names_that_nearly_match_are_suggested(name: str, other: str, suggested: bool) -> None:
    assert (NameSimilarity(name).of(other) > 0) == suggested


def test_the_same_name_in_other_case_is_the_most_similar() -> None:
    likeness = NameSimilarity("panel")
    assert likeness.of("PANEL") > likeness.of("panels")
