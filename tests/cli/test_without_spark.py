"""foldmq without the packages of the extra ``spark``: only ``foldmq spark`` needs them."""

import ast
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.runtime.errors import install_command

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = ("matplotlib", "msgspec", "numpy", "obstore", "pandas", "py4j", "pyarrow", "pyspark")
COMMANDS = """
import sys
for name in {packages!r}:
    sys.modules[name] = None  # importing it fails, as if it were not installed
from cli.main import main
for arguments in {commands!r}:
    sys.argv = ["foldmq", *arguments.split()]
    try:
        main()
    except SystemExit as ended:
        print("EXIT", ended.code, flush=True)
"""


def run(*commands: str) -> tuple[str, str]:
    """Run commands in one process that finds none of the packages; return its output."""
    code = COMMANDS.format(packages=PACKAGES, commands=commands)
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout, ran.stderr


def imported(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield what a module imports when it is loaded, without types."""
    for each in statements:
        if isinstance(each, ast.Import):
            yield from (name.name for name in each.names)
        elif isinstance(each, ast.ImportFrom):
            yield each.module or ""
        elif isinstance(each, ast.If) and "TYPE_CHECKING" not in ast.unparse(each.test):
            yield from imported([*each.body, *each.orelse])
        elif isinstance(each, ast.ClassDef | ast.With | ast.Try):
            yield from imported(each.body)


def test_no_module_of_other_commands_needs_a_package_of_spark() -> None:
    modules = 0
    for package in ("actors", "cli", "cluster", "eventstore", "outbox", "projections", "protocol"):
        for file in (ROOT / package).rglob("*.py"):
            if file.is_relative_to(ROOT / "cli" / "spark"):
                continue
            names = {*imported(ast.parse(file.read_text("utf-8")).body)}
            roots = {name.partition(".")[0] for name in names}
            assert not roots & {*PACKAGES, "spark"}, file
            assert not any(f"{name}.".startswith("cli.spark.") for name in names), file
            modules += 1
    assert modules > 400


def test_help_is_shown() -> None:
    commands = ("--help", "serve --help", "spark --help", "spark audit --help")
    out, err = run(*commands)
    assert err == ""
    pages = out.split("EXIT 0\n")
    assert [page.partition(" ")[0] for page in pages] == ["Usage:"] * len(commands) + [""]


def test_a_job_names_the_package_to_install() -> None:
    jobs = ("audit", "rebuild sessions", "recovery-check", "stats", "archive archived")
    out, err = run(*(f"spark {job}" for job in jobs))
    assert out == "EXIT 69\n" * len(jobs)
    assert err == f"foldmq: Spark is not installed: {install_command()}\n" * len(jobs)


class Installed:
    """The metadata of an installation of foldmq."""

    requires = (
        "orjson>=3",
        "msgspec<1,>=0.20; extra == 'spark'",
        'pyspark[sql]<5,>=4.3; extra == "spark"',
        'pytest; extra == "test"',
    )

    def __init__(self, checkout: Path | None) -> None:
        self._origin = checkout and {"dir_info": {"editable": True}, "url": checkout.as_uri()}

    def read_text(self, name: str) -> str | None:
        """Return direct_url.json, which there is if it did not come from the index."""
        assert name == "direct_url.json"
        return self._origin and json.dumps(self._origin)


PIP = f"{shlex.quote(sys.executable)} -m pip install 'msgspec<1,>=0.20' 'pyspark[sql]<5,>=4.3'"


def test_an_installed_package_names_its_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not ``foldmq[spark]``: the index may lack this foldmq, or have another version."""
    monkeypatch.setattr("spark.runtime.errors.distribution", lambda _name: Installed(None))
    assert install_command() == PIP


def test_a_checkout_names_make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkout = tmp_path / "a checkout"
    (checkout / ".venv").mkdir(parents=True)
    monkeypatch.setattr("spark.runtime.errors.distribution", lambda _name: Installed(checkout))
    monkeypatch.setattr(sys, "prefix", str(checkout / ".venv"))
    assert install_command() == PIP, "there is no Makefile"
    (checkout / "Makefile").touch()
    assert install_command() == f"make -C '{checkout}' spark"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install_command() == PIP, "make installs into another environment"


def test_make_has_the_target_that_the_command_names() -> None:
    subprocess.run(["make", "--dry-run", "-C", ROOT, "spark"], capture_output=True, check=True)
