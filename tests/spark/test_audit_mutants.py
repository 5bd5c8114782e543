"""Damage to a log that an audit finds: every event type, every field, every kind of damage."""

from __future__ import annotations

from typing import get_args

import pytest
from mutants import PAGE, UNTOLD, WHY, is_found, outcome, page, sound_records, table

from eventstore.format import Event


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, bool]]:
    return outcome()


def test_nothing_is_wrong_with_the_sound_log() -> None:
    assert not is_found(sound_records())


def test_harm_is_found_unless_the_table_says_why_not(found: dict[str, dict[str, bool]]) -> None:
    missed = {
        event: {harm for harm, seen in harms.items() if not seen} for event, harms in found.items()
    }
    assert {event: harms for event, harms in missed.items() if harms} == {
        event: set(harms) for event, harms in UNTOLD.items()
    }


def test_every_event_type_is_harmed(found: dict[str, dict[str, bool]]) -> None:
    assert set(found) == {kind.__name__ for kind in get_args(Event)}


def test_every_reason_is_given_somewhere() -> None:
    assert {why for harms in UNTOLD.values() for why in harms.values()} == {*WHY}


def test_the_page_has_this_table(found: dict[str, dict[str, bool]]) -> None:
    text = PAGE.read_text("utf-8")
    assert page(text, table(found)) == text, "write it: python tests/spark/mutants.py --write"
