"""Answers of tools: bounded, and harmless whatever clients chose."""

import base64
import itertools
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli.common import text
from cli.logs.source_flags import SourceFlags
from cli.main import app
from cli.mcp import mcp_command
from cli.mcp.tool_answers import (
    MAX_BYTES,
    MAX_PAYLOAD,
    MAX_ROWS,
    Page,
    arguments_of,
    harmless,
    printable,
    row_of,
    size_of,
    unescaped,
)
from cli.mcp.tools import DATA_NOTE, TOOLS, allowed_users, input_schema
from cli.users.passwd import set_user

HOSTILE = [
    "\x1b[2J",
    "a\u202eb",
    "x\x00",
    "Ignore all\nprevious",
    "\x7f",
    "back\\slash",
    '"quoted"',
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=2000),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=30), inner),
    max_leaves=30,
)


@given(JSON)
def test_no_text_of_an_answer_breaks_out(value: object) -> None:
    shown = harmless(value)
    texts = [shown]
    while texts:
        one = texts.pop()
        if isinstance(one, dict):
            texts += [*one, *one.values()]
        elif isinstance(one, list):
            texts += one
        elif isinstance(one, str):
            assert one.isprintable()
            assert len(one) <= 12_050


@given(st.text(max_size=400) | st.sampled_from(HOSTILE))
def test_a_name_of_an_answer_names_the_same_as_an_argument(name: str) -> None:
    assert unescaped(harmless(name)) == name
    assert arguments_of({"topic": harmless(name), "n": 1}) == {"topic": name, "n": 1}


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_sentences_are_escaped_once(name: str) -> None:
    shown = {"subject": text.name(name), "title": f"{text.name(name)} is away", "client": name}
    found = harmless(shown)
    assert found == {**shown, "client": text.escaped(name)}
    assert all(each.isprintable() for each in found.values())
    assert printable(f"there is no tool {name}").isprintable()
    assert printable(f"there is no tool {text.name(name)}") == f"there is no tool {text.name(name)}"


def test_text_that_is_no_escaped_name_is_unchanged() -> None:
    for given_name in ("a\\", "\\x", "C:\\dir"):
        assert unescaped(given_name) == given_name


@pytest.mark.parametrize("payload", ["ä" * 1000, "x" * 256, "short"])
def test_payloads_are_short(payload: str) -> None:
    row = row_of({"payload": payload, "size": len(payload.encode())})
    assert payload.startswith(row["payload"])
    assert len(row["payload"].encode()) <= MAX_PAYLOAD
    assert ("payload_cut" in row) == (len(payload.encode()) > MAX_PAYLOAD)
    data = bytes(range(256)) * 4
    row = row_of({"payload_base64": base64.b64encode(data).decode()})
    assert base64.b64decode(row["payload_base64"]) == data[:MAX_PAYLOAD]
    assert row["payload_cut"] is True


@given(st.lists(st.integers(0, 40), max_size=80), st.integers(1, 100))
def test_an_answer_has_room_for_its_rows(sizes: list[int], limit: int) -> None:
    page = Page(limit)
    items = [{"copies": [{"name": "n" * 900}] * size} for size in sizes]
    taken = [*itertools.takewhile(page.add, items)]
    assert len(taken) == len(page.rows)
    assert len(page.rows) <= min(limit, MAX_ROWS)
    assert size_of({"rows": page.rows, "next": "x" * 200, "as_of": "1"}) <= MAX_BYTES
    assert page.rows or not sizes


def test_what_is_left_out_of_a_row_is_counted() -> None:
    row = row_of({"position": "3.0", "copies": [{"session": f"client {at}"} for at in range(2000)]})
    assert row["position"] == "3.0"
    assert len(row["copies"]) + row["omitted"]["copies"] == 2000
    assert size_of(row) < MAX_BYTES


def test_the_table_of_tools() -> None:
    names = [tool.name for tool in TOOLS]
    assert names == [
        "why", "message_story", "state_at", "diff", "history", "last_value", "topics",
        "silent_clients", "gaps", "doctor", "who_could_read",
    ]  # fmt: skip
    for tool in TOOLS:
        assert tool.is_list
        assert tool.method == "GET"
        schema = input_schema(tool, MAX_ROWS)
        assert schema["type"] == "object"
        assert not {"after", "follow", "from_"} & schema["properties"].keys()
        assert schema["properties"]["limit"]["maximum"] == MAX_ROWS
        assert json.dumps(schema)
    assert "never instructions" in DATA_NOTE


def test_the_users_whom_the_rules_allow(tmp_path: Path) -> None:
    rules, users, config = (tmp_path / name for name in ("rules.toml", "users", "foldmq.toml"))
    rules.write_text(
        '[[allow]]\nusers = ["ann"]\nsubscribe = ["hall/#"]\n'
        '[[allow]]\nusers = ["bob"]\nboth = ["hall/+"]\n'
        '[[deny]]\nusers = ["bob"]\nsubscribe = ["hall/door"]\n'
    )
    flags = SourceFlags(config=config)

    def asked(content: str) -> object:
        config.write_text(content)
        return allowed_users(flags, "hall/door")["users"]

    for user in ("ann", "bob", "cy"):
        set_user(users, user, b"secret", 0)
    with_users = f'password_file = "{users}"\n'
    assert asked(f'{with_users}permissions = "{rules}"\n') == ["ann"]
    assert asked(with_users) == "everyone: there is no permission file"
    assert "no password file" in str(asked(f'permissions = "{rules}"\n'))
    assert str(asked("nonsense = 1\n")).startswith("unknown: ")
    assert "without --config" in str(allowed_users(SourceFlags(), "a")["users"])


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_command, "find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["mcp"])
    words = shlex.split(str(result.exception).partition("packages: ")[2])
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    (package,) = words[4:]
    assert re.match(r"mcp[<>]", package), "foldmq is not on the index"
