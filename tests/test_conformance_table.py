import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def table() -> ModuleType:
    path = Path(__file__).parent.parent / "tools" / "conformance_table.py"
    spec = importlib.util.spec_from_file_location("conformance_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    # All tests are read for them, each time.
    module.proofs = functools.cache(module.proofs)  # type: ignore[attr-defined]
    return module


@pytest.fixture(params=["MQTT_3_1_1", "MQTT_5"])
def standard(table: ModuleType, request: pytest.FixtureRequest) -> Any:
    return getattr(table, request.param)


def test_every_statement_for_servers_is_proven_or_has_a_reason(
    table: ModuleType, standard: Any
) -> None:
    proven = table.proofs(standard)
    bare = [
        one.number
        for one in table.statements(standard)
        if one.binds_server and one.number not in proven and not one.reason
    ]
    assert bare == []


def test_no_statement_has_both_a_reason_and_a_proof(table: ModuleType, standard: Any) -> None:
    proven = table.proofs(standard)
    both = [one.number for one in table.statements(standard) if one.reason and one.number in proven]
    assert both == []


def test_every_mark_names_a_statement_of_the_standard(table: ModuleType, standard: Any) -> None:
    known = {one.number for one in table.statements(standard)}
    assert set(table.proofs(standard)) - known == set()


def test_statements_are_complete_and_in_order(table: ModuleType) -> None:
    """Within each section the numbers run from 1 without a gap."""
    statements = table.statements(table.MQTT_3_1_1)
    parts = [one.number.removeprefix("MQTT-").split("-") for one in statements]
    places = [(*map(int, section.split(".")), int(number)) for section, number in parts]
    assert places == sorted(set(places))
    for section in {place[:3] for place in places}:
        numbers = [place[3] for place in places if place[:3] == section]
        assert numbers == list(range(1, len(numbers) + 1)), section
    assert len(places) == 141
