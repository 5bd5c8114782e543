"""Damage to a log that an audit finds: every event type, every field, every kind of damage.

And events that never happened, wherever they are plausible.
"""

from typing import get_args

import pytest
from forgeries import KINDS
from mutants import (
    APART,
    PAGE,
    UNTOLD,
    WHY,
    Tried,
    forged_outcome,
    is_found,
    outcome,
    page,
    sound_records,
    table,
)

from eventstore.format.event_parsing import Event


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, bool]]:
    return outcome()


@pytest.fixture(scope="module")
def forged() -> list[Tried]:
    return forged_outcome()


def test_nothing_is_wrong_with_the_sound_log() -> None:
    assert not is_found(sound_records())


def test_changes_are_found_unless_the_table_has_a_reason(found: dict[str, dict[str, bool]]) -> None:
    missed = {
        event: {harm for harm, seen in harms.items() if not seen} for event, harms in found.items()
    }
    assert {event: harms for event, harms in missed.items() if harms} == {
        event: set(harms) for event, harms in UNTOLD.items()
    }


def test_forged_events_are_found_unless_the_table_has_a_reason(forged: list[Tried]) -> None:
    missed = {one.kind[:2] for one in forged if one.found < one.tried}
    assert missed == {kind[:2] for kind in KINDS if kind.untold}


def test_every_kind_of_forged_event_is_plausible_somewhere(forged: list[Tried]) -> None:
    assert not [one.kind[:2] for one in forged if not one.tried]


def test_every_event_type_is_harmed(found: dict[str, dict[str, bool]]) -> None:
    types = {kind.__name__ for kind in get_args(Event)} - APART
    assert set(found) == types
    assert {kind.event for kind in KINDS} == types


def test_every_reason_is_given_somewhere() -> None:
    given = {why for harms in UNTOLD.values() for why in harms.values()}
    assert given | {kind.untold for kind in KINDS} - {""} == {*WHY}


def test_the_page_has_this_table(found: dict[str, dict[str, bool]], forged: list[Tried]) -> None:
    text = PAGE.read_text("utf-8")
    told = table(found, forged)
    assert page(text, told) == text, "write it: python tests/spark/mutants.py --write"
