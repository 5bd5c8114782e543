"""Runs the benchmark on an optimised build of Python, or reports that there is none.

A build without ``--enable-optimizations`` costs foldmq a quarter and Mosquitto nothing: what is
compared on one says little about foldmq. Where the virtual environment has such a build, an
optimised one of the same version takes its place, with the same installed packages.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.brokers.broker_processes import ROOT
from bench.measuring.progress import say
from cli.common import interpreter

_CHECK = ROOT / "cli" / "common" / "interpreter.py"
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_PLACES = (f"/usr/local/bin/{_VERSION}", f"/usr/bin/{_VERSION}")


def use(directory: Path) -> None:
    """Replace this process by one with an optimised interpreter if its own is not."""
    if interpreter.own() is not False:
        return
    other = _other()
    if other is None:
        return
    place = directory / "optimised-python"
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([other, "-m", "venv", "--without-pip", str(place)], check=True)
    packages = place / "lib" / _VERSION / "site-packages"
    borrowed = [each for each in sys.path if each.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join([*borrowed, str(ROOT), ""]), "utf-8")
    say(f"{other} takes the place of {sys.executable}, which is not an optimised build")
    program = str(place / "bin" / "python")
    os.execv(program, [program, *sys.argv])


def _other() -> str | None:
    for program in (*_PLACES, shutil.which(_VERSION)):
        if program is None or not os.access(program, os.X_OK):
            continue
        done = subprocess.run([program, _CHECK], capture_output=True, text=True, check=False)
        if done.stdout.strip() == "optimised":
            return program
    return None


def refusal(*, compared: bool, told_to: bool) -> str | None:
    """Return why this interpreter cannot be used for a comparison; None: it can."""
    if interpreter.own() is not False or not compared or told_to:
        return None
    return (
        f"{interpreter.described()} at {sys.executable} costs foldmq about a quarter, and no "
        f"optimised {_VERSION} was found: nothing is compared on it. Make the environment anew "
        "with one (make clean bench PYTHON=...), measure foldmq alone (--beside nothing), or "
        "compare all the same (--any-python)"
    )
