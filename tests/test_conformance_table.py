from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType


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


@pytest.mark.slow
def test_page_is_up_to_date(table: ModuleType) -> None:
    assert table.PAGE.read_text("utf-8") == table.page(), "run python tools/conformance_table.py"


def test_every_statement_for_servers_is_proven_or_has_a_reason(table: ModuleType) -> None:
    proven = table.proofs()
    bare = [
        one.number
        for one in table.statements()
        if one.binds_server and one.number not in proven and not one.reason
    ]
    assert bare == []


def test_no_reason_stands_beside_a_proof(table: ModuleType) -> None:
    proven = table.proofs()
    assert [one.number for one in table.statements() if one.reason and one.number in proven] == []


def test_every_mark_names_a_statement_of_the_standard(table: ModuleType) -> None:
    assert set(table.proofs()) - {one.number for one in table.statements()} == set()


def test_statements_are_complete_and_in_order(table: ModuleType) -> None:
    """Within each section the numbers run from 1 without a gap."""
    statements = [one.number.removeprefix("MQTT-").split("-") for one in table.statements()]
    places = [(*map(int, section.split(".")), int(number)) for section, number in statements]
    assert places == sorted(set(places))
    for section in {place[:3] for place in places}:
        numbers = [place[3] for place in places if place[:3] == section]
        assert numbers == list(range(1, len(numbers) + 1)), section
    assert len(places) == 141
