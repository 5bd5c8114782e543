"""foldmq without the packages of the extra ``spark``: only ``foldmq spark`` needs them."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spark.runtime.errors import install_command

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_SPARK = """
import importlib, pkgutil, sys
for name in ("matplotlib", "msgspec", "numpy", "obstore", "pandas", "py4j", "pyarrow", "pyspark"):
    sys.modules[name] = None  # importing it fails, as if it were not installed
"""
EVERY_MODULE = """
import actors, cli, eventstore, projections, protocol
for package in (actors, cli, eventstore, projections, protocol):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.startswith("cli.spark."):
            importlib.import_module(found.name)
"""
COMMAND = """
from cli.main import main
sys.argv = ["foldmq", *{arguments}]
main()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run the code in a process of its own that finds none of these packages."""
    command = [sys.executable, "-c", WITHOUT_SPARK + code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_no_module_of_other_commands_needs_a_package_of_spark() -> None:
    ran = run(EVERY_MODULE)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["serve", "--help"], ["spark", "--help"], ["spark", "audit", "--help"]],
)
def test_help_is_shown(arguments: list[str]) -> None:
    ran = run(COMMAND.format(arguments=arguments))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("Usage: foldmq")


@pytest.mark.parametrize(
    "job", ["audit", "rebuild sessions", "recovery-check", "stats", "archive archived"]
)
def test_a_job_names_the_package_to_install(job: str) -> None:
    ran = run(COMMAND.format(arguments=["spark", *job.split()]))
    assert (ran.returncode, ran.stdout) == (69, "")
    assert ran.stderr == f"foldmq: Spark is not installed: {install_command()}\n"


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
