"""The list of the statements of MQTT 5.0, and the statements that errors name."""

import tomllib
from pathlib import Path

from harness.catalogue_v5 import BAD5

from protocol.mqtt.property_table import PROPERTIES
from protocol.mqtt.reason_codes import STATEMENTS

LIST = Path(__file__).resolve().parents[3] / "tools" / "normative_statements_mqtt5.toml"
entries = tomllib.loads(LIST.read_text("utf-8"))["statement"]
FIRST = {(2, 2, 1): 2}
"""Sections whose first statement has another number than 1."""


def test_it_is_complete_and_in_order() -> None:
    """Within each section the numbers run from the first without a gap."""
    places = []
    for entry in entries:
        section, number = entry["number"].removeprefix("MQTT-").split("-")
        places.append((*map(int, section.split(".")), int(number)))
    assert places == sorted(set(places))
    for section in {place[:-1] for place in places}:
        numbers = [place[-1] for place in places if place[:-1] == section]
        first = FIRST.get(section, 1)
        assert numbers == list(range(first, first + len(numbers))), section
    assert len(places) == 251


def test_every_statement_has_a_side_and_a_text() -> None:
    for entry in entries:
        assert set(entry) - {"reason"} == {"number", "binds", "summary"}
        assert entry["binds"] in {"client", "server", "both"}
        assert entry["summary"].endswith(".")
    summaries = [entry["summary"] for entry in entries]
    assert len(set(summaries)) == len(summaries)


def test_errors_name_statements_of_the_list() -> None:
    known = {entry["number"] for entry in entries}
    named = {entry.statement for entry in BAD5}
    named |= set(STATEMENTS.values()) | {one.statement for one in PROPERTIES.values()}
    assert named - known == set()
