"""The process of a command: its arguments, the modules that it executes late, and its end."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.program.process import _DeferredFinder, without_secrets


@pytest.mark.parametrize(
    ("given", "kept", "found"),
    [
        (["serve", "--nats-password", "x"], ["serve"], {"FOLDMQ_NATS_PASSWORD": "x"}),
        (["serve", "--bridge-password=x=y"], ["serve"], {"FOLDMQ_BRIDGE_PASSWORD": "x=y"}),
        (
            ["serve", "--nats-url", "nats://u:p@h", "--sync", "1"],
            ["serve", "--sync", "1"],
            {"FOLDMQ_NATS_URL": "nats://u:p@h"},
        ),
        (["serve", "--nats-url", "nats://h"], ["serve", "--nats-url", "nats://h"], {}),
        (["serve", "--nats-password"], ["serve", "--nats-password"], {}),
        (["log", "--nats-password", "x"], ["log"], {"FOLDMQ_NATS_PASSWORD": "x"}),
        (["pub", "-P", "x", "-t", "a"], ["pub", "-t", "a"], {"FOLDMQ_PASSWORD": "x"}),
        (["sub", "-Px"], ["sub"], {"FOLDMQ_PASSWORD": "x"}),
        (["sub", "--pw=x"], ["sub"], {"FOLDMQ_PASSWORD": "x"}),
        (["sub", "--url", "mqtt://u:p@h"], ["sub"], {"FOLDMQ_URL": "mqtt://u:p@h"}),
        (["sub", "--url=mqtt://h"], ["sub", "--url=mqtt://h"], {}),
        (["passwd", "-P", "x"], ["passwd", "-P", "x"], {}),
        ([], [], {}),
    ],
)
def test_passwords_are_taken_out(given: list[str], kept: list[str], found: dict[str, str]) -> None:
    assert without_secrets(["foldmq", *given]) == (["foldmq", *kept], found)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package ``lazypack`` that is deferred, and one beside it that imports it."""
    folder = tmp_path / "lazypack"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import part\nfrom .part import VALUE\nDONE = 1\n")
    (folder / "part.py").write_text("VALUE = object()\n")
    (tmp_path / "lazyuser.py").write_text(
        "import lazypack\n\ndef use():\n    return lazypack.DONE\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        sys, "meta_path", [_DeferredFinder(frozenset({"lazypack"})), *sys.meta_path]
    )
    yield folder
    for name in [one for one in sys.modules if one.startswith(("lazypack", "lazyuser"))]:
        del sys.modules[name]


@pytest.mark.usefixtures("package")
def test_a_module_is_executed_when_it_is_used() -> None:
    user = importlib.import_module("lazyuser")
    assert "lazypack" in sys.modules
    assert "lazypack.part" not in sys.modules
    assert user.use() == 1
    assert sys.modules["lazypack"].VALUE is sys.modules["lazypack.part"].VALUE
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sys.modules["lazypack"].nothing  # noqa: B018


@pytest.mark.usefixtures("package")
def test_a_part_of_it_is_imported_once() -> None:
    """Otherwise its exceptions would be other ones than those that are caught."""
    part = importlib.import_module("lazypack.part")
    package = importlib.import_module("lazypack")
    assert "DONE" not in vars(package)
    assert package.part is part
    assert package.DONE == 1
    assert package.VALUE is part.VALUE
    assert sys.modules["lazypack.part"] is part


@pytest.mark.usefixtures("package")
def test_names_can_be_imported_from_it() -> None:
    from lazypack import DONE, part  # type: ignore[import-not-found]

    assert (DONE, part) == (1, sys.modules["lazypack.part"])


def test_an_import_error_is_raised(package: Path) -> None:
    (package / "__init__.py").write_text("import nothing_of_that_name\n")
    found = importlib.import_module("lazypack")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        found.VALUE  # noqa: B018


ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import atexit, sys, threading, time
from cli.program.process import end_process

class Freed:
    def __del__(self):
        print("freed")

kept = Freed()
kept.itself = kept
atexit.register(print, "at exit")
print("written" * 5000)
{before}
try:
    sys.exit({code})
except SystemExit as ended:
    end_process(ended)
"""
THREAD = "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()"


def ended(code: object, before: str = "") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(code=code, before=before)
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.system
@pytest.mark.parametrize(("code", "expected"), [(None, 0), (0, 0), (69, 69), (130, 130)])
def test_output_is_written_and_functions_are_called(code: int | None, expected: int) -> None:
    done = ended(code)
    assert (done.returncode, done.stderr) == (expected, "")
    assert done.stdout == "written" * 5000 + "\nat exit\n", "and nothing was freed one by one"


@pytest.mark.system
def test_a_thread_is_waited_for() -> None:
    done = ended(3, THREAD)
    assert done.returncode == 3
    assert "thread\nat exit\n" in done.stdout


@pytest.mark.system
def test_a_text_is_written_to_stderr() -> None:
    done = ended("'a text'")
    assert (done.returncode, done.stderr) == (1, "a text\n")
    assert "at exit\n" in done.stdout
