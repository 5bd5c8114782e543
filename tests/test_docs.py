"""The documentation matches the code: named objects exist, generated pages are fresh."""

import ast
import functools
import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from cli.settings.settings import Settings
from eventstore.format.event_parsing import Event
from eventstore.format.turn_events import TurnEvent
from eventstore.reasons import CLOSE_REASONS, DROP_REASONS
from projections.state.session import LOST
from protocol.mqtt.reason_codes import ENDINGS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CONTRIBUTE = DOCS / "contribute"
"""Pages for contributors, among them generated tables: their words are not counted."""
PACKAGES = ["protocol", "eventstore", "projections", "outbox", "actors", "cluster", "spark", "cli"]
DESIGNS = sorted(page for name in PACKAGES for page in (ROOT / name).rglob("DESIGN.md"))
"""What each package is for and how it works, beside its code."""
GENERATED_ELSEWHERE = {CONTRIBUTE / "conformance.md", CONTRIBUTE / "conformance-5.md"}
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page not in GENERATED_ELSEWHERE),
    *DESIGNS,
]

STATUSES = {"yes", "better", "not yet"}
SEEDS = {"0", "1", "2", "3", "4"}

_CODE = re.compile(
    r"`((?:protocol|eventstore|projections|actors|cluster|cli|spark(?!\.(?:local|sql)\.))(?:\.\w+)+)"
    r"(?:\(\))?`"
)
"""Names in the code; ``spark.local.dir`` and the like are settings of Spark."""
_TEST = re.compile(r"([\w/]+\.py)::(\w+)")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_FILE = re.compile(
    r"`((?:tests|tools|docs|bench|deploy|protocol|eventstore|projections|actors|cluster|spark|cli)"
    r"/[a-z0-9_./-]*)(?:::\w+)?`"
)

_INSTALLED = re.compile(r"/foldmq_packages/([\w/]+\.py)")
"""Files of an installed package, as commands of a page name them."""
_TEST_FILE = re.compile(r"(?<![\w/.*-])((?:[\w-]+/)*test_\w+\.py)(?!\w|::)")
_HELD = re.compile(r"`(?P<name>\w+)`\s+of\s+`(?P<file>[\w/]+\.py)`")
_HOLDS = re.compile(r"`(?P<file>[\w/]+\.py)`\s+\(`(?P<name>\w+)`\)")

_BARE = re.compile(r"`((?:[A-Z]\w+\.)?[a-z_]\w*_\w+|[A-Z][a-z]\w+(?:\.\w+)?)`")
"""Names without their module: a name with an underscore, a class, or a member of a class."""
_DEFINED = re.compile(r"(?m)^ *(?:async )?(?:def|class) (\w+)|^ +(?:self\.)?(\w+)(?:: |\b *=)")
_PYKKA = {"Actor", "ActorDeadError", "ActorRef", "Future", "pyspark_foldmq"}


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _tool(name: str) -> ModuleType:
    path = ROOT / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def _functions(path: Path) -> frozenset[str]:
    """The functions of a test module, without tests that are known to fail: they prove nothing."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any("xfail" in ast.unparse(decorator) for decorator in node.decorator_list)
    )


def _resolve(dotted: str) -> object:
    """The object with a dotted name; raises ImportError or AttributeError if there is none."""
    package, *parts = dotted.split(".")
    found: object = importlib.import_module(package)
    for part in parts:
        name = f"{found.__name__}.{part}" if isinstance(found, ModuleType) else ""
        if hasattr(found, "__path__") and importlib.util.find_spec(name) is not None:
            found = importlib.import_module(name)
        else:
            found = getattr(found, part)
    return found


def _missing_code(text: str) -> list[str]:
    missing = []
    for dotted in _CODE.findall(text):
        try:
            _resolve(dotted)
        except (ImportError, AttributeError):
            missing.append(dotted)
    return missing


def _missing_tests(text: str) -> list[str]:
    files = [
        path
        for path in _TEST_FILE.findall(text)
        if not any((ROOT / folder / path).is_file() for folder in ("", "tests"))
    ]
    return files + [
        f"{path}::{name}"
        for path, name in _TEST.findall(text)
        if not (ROOT / "tests" / path).is_file() or name not in _functions(ROOT / "tests" / path)
    ]


def _not_held(text: str) -> list[str]:
    """Return the names that a page says a file has and that it does not have."""
    found = [*_HELD.finditer(text), *_HOLDS.finditer(text)]
    return [
        f"{one['file']}: {one['name']}"
        for one in found
        if not re.search(rf"\b{one['name']}\b", (ROOT / one["file"]).read_text("utf-8"))
    ]


@functools.cache
def _defined() -> frozenset[str]:
    """The names of classes, functions, fields and attributes of the product."""
    sources = (path.read_text("utf-8") for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    return frozenset(one or other for text in sources for one, other in _DEFINED.findall(text))


def _missing_bare(text: str) -> list[str]:
    """Return the names without their module that nothing in the product has."""
    known = _defined() | _PYKKA
    return [name for name in _BARE.findall(text) if not known.issuperset(name.split("."))]


def _is_missing(page: Path, link: str) -> bool:
    return not (page.parent / link).exists()


def _rows(text: str) -> list[list[str]]:
    """The cells of every table row that is no heading."""
    rows = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if line.startswith("|") and not line.startswith("|---") and not following.startswith("|--"):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            rows.append([cell.strip() for cell in cells])
    return rows


def test_schema_names_every_event_and_field() -> None:
    def fields(text: str) -> dict[str, set[str]]:
        events = json.loads(text)["$defs"]
        return {name: set(event["properties"]) for name, event in events.items()}

    # How pydantic words a schema differs between its versions; what there is does not.
    module = _tool("events_schema")
    assert fields(module.PAGE.read_text("utf-8")) == fields(module.page())


def test_every_event_is_described_with_all_its_fields() -> None:
    described = {row.name: row for row in _tool("events_table").events()}
    assert set(described) == {kind.__name__ for kind in (*get_args(Event), *get_args(TurnEvent))}
    for kind in (*get_args(Event), *get_args(TurnEvent)):
        fields = [name for name in kind.__dataclass_fields__ if name not in {"e", "v"}]
        assert [field.name for field in described[kind.__name__].fields] == fields
        assert all(field.meaning for field in described[kind.__name__].fields), kind


def test_every_reason_that_is_described_is_given_somewhere() -> None:
    """And every reason for a drop that the code gives is described."""
    sources = (ROOT / "actors").rglob("*.py")
    source = "".join(path.read_text("utf-8") for path in sources)
    # LOST is given by foldmq salvage
    described = [one for one in (*DROP_REASONS, *CLOSE_REASONS) if one != LOST]
    assert [reason for reason in described if f'"{reason}"' not in source] == []
    drop = r'(?:MessageDropped|dropped|dropped_unrecorded)\(\s*[\w.]+,\s*"(\w+)"'
    given = set(re.findall(drop, source))
    assert given
    assert given <= set(DROP_REASONS)


def test_every_reason_for_the_end_of_a_connection_is_described() -> None:
    """The audit accepts no other."""
    assert set(ENDINGS) - {"removed"} <= set(CLOSE_REASONS)


def test_every_setting_is_described() -> None:
    text = (DOCS / "configuration.md").read_text("utf-8")
    for name, field in Settings.model_fields.items():
        assert text.count(f"\n| `{name}` |") == 1, name
        assert field.description, name


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_names_in_a_page_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    assert _missing_code(text) == []
    assert _missing_tests(text) == []
    assert [link for link in _LINK.findall(text) if _is_missing(page, link)] == []
    files = [*_FILE.findall(text), *_INSTALLED.findall(text)]
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert _not_held(text) == []


@pytest.mark.parametrize(
    "page", [CONTRIBUTE / "architecture.md", CONTRIBUTE / "tour.md", *DESIGNS], ids=_name
)
def test_bare_names_in_the_design_exist(page: Path) -> None:
    assert _missing_bare(page.read_text("utf-8")) == []


def test_parity_rows_are_complete() -> None:
    """Mechanism with its seeds, place, proof, status; what works is proven by a test."""
    rows = _rows((CONTRIBUTE / "parity.md").read_text("utf-8"))
    assert len(rows) > 100
    for row in rows:
        assert len(row) == 4, row
        mechanism, place, proof, status = row
        seeds = re.search(r"\(([\d, ]+)\)$", mechanism)
        assert seeds is not None, f"no seed named: {mechanism}"
        assert set(seeds[1].replace(" ", "").split(",")) <= SEEDS, mechanism
        assert status.split(":")[0] in STATUSES, row
        if status.startswith("not yet"):
            assert ":" in status, f"say what is planned: {mechanism}"
        else:
            assert place, row
            assert _TEST.search(proof) or proof.startswith("no test"), row


@pytest.mark.parametrize("page", DESIGNS, ids=_name)
def test_a_design_is_short_and_the_overview_links_to_it(page: Path) -> None:
    assert len(page.read_text("utf-8").split()) <= 1600
    assert f"](../../{_name(page)})" in (CONTRIBUTE / "architecture.md").read_text("utf-8")
