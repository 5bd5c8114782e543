"""Fuzz a target, guided by coverage.

    python tests/fuzz/run.py TARGET [--seconds N] [--keep] [--seed N]
    python tests/fuzz/run.py --list

A target is a module ``fuzz_TARGET.py`` here, with a function ``one(data)`` that raises only if
there is a defect. The run begins with the inputs in ``corpus/TARGET/``, and uses the words in
``TARGET.dict``, if there is such a file (in libFuzzer's format). ``--keep`` adds the inputs that it
found and that reach code that the others do not. An input that fails is left in the working
directory as ``crash-...``, to be added to the corpus when the defect is fixed: the tests replay all
inputs.

Needs atheris (``pip install atheris``); exit codes: 0 nothing found, 1 a defect, 2 cannot run.
"""

import argparse
import importlib
import importlib.util
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LARGEST = 8192
"""Bytes of an input."""
SLOWEST = 20
"""Seconds after which an input counts as one that hangs."""
_PREFIX = "fuzz_"


def targets() -> list[str]:
    """Give the names of all targets."""
    return sorted(path.stem.removeprefix(_PREFIX) for path in HERE.glob(f"{_PREFIX}*.py"))


def corpus(target: str) -> Path:
    """Give the directory with the inputs of a target."""
    return HERE / "corpus" / target


def inside(target: str, arguments: list[str]) -> None:
    """Fuzz in this process, which atheris ends; the first argument is a program that does so."""
    atheris = importlib.import_module("atheris")
    sys.path[:0] = [str(ROOT), str(HERE)]
    with atheris.instrument_imports():
        module = importlib.import_module(_PREFIX + target)
    atheris.Setup(arguments, module.one)
    atheris.Fuzz()


def fuzz(target: str, seconds: int, seed: int | None, *, keep: bool) -> int:
    """Fuzz for so long in a process of its own; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="foldmq-fuzz-") as name:
        work = Path(name)
        command = _program(target, work / "fuzz")
        found = work / "found"
        found.mkdir()
        known = corpus(target)
        known.mkdir(parents=True, exist_ok=True)
        common = [f"-max_len={LARGEST}", f"-timeout={SLOWEST}", "-rss_limit_mb=2048"]
        timed = [f"-max_total_time={seconds}", "-print_final_stats=1"]
        words = HERE / f"{target}.dict"
        timed += [f"-dict={words}"] if words.exists() else []
        seeded = [f"-seed={seed}"] if seed is not None else []
        result = subprocess.run(
            [*command, *common, *timed, *seeded, str(found), str(known)], check=False
        )
        if result.returncode:
            print(f"{target}: a defect was found, see above", file=sys.stderr)
            return 1
        print(f"{target}: {seconds} s, {len(list(found.iterdir()))} new inputs, no defect")
        if keep:
            _keep(command, work, found, known)
    return 0


def _program(target: str, path: Path) -> list[str]:
    """Make a program that fuzzes, as libFuzzer starts itself again to merge; gives a command."""
    command = [sys.executable, str(Path(__file__).resolve()), "--inside", target, str(path)]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o700)
    return command


def _keep(command: list[str], work: Path, found: Path, known: Path) -> None:
    """Add what reaches something new to the corpus; what is there stays."""
    merged = work / "merged"
    shutil.copytree(known, merged)
    before = {path.name for path in merged.iterdir()}
    subprocess.run([*command, "-merge=1", str(merged), str(found)], check=True)
    new = [path for path in merged.iterdir() if path.name not in before]
    for path in new:
        shutil.copy(path, known / path.name)
    print(f"{len(new)} inputs were added to {known.relative_to(ROOT)}")


def main(arguments: list[str]) -> int:
    """Run as a script; returns the exit code."""
    if arguments[:1] == ["--inside"]:
        inside(arguments[1], arguments[2:])
    parser = argparse.ArgumentParser(description="Fuzz a target, guided by coverage.")
    parser.add_argument("target", nargs="?", choices=targets(), help="what to fuzz")
    parser.add_argument("--seconds", type=int, default=600, help="for how long [600]")
    parser.add_argument("--seed", type=int, help="of the mutations [another one each time]")
    parser.add_argument("--keep", action="store_true", help="add what was found to the corpus")
    parser.add_argument("--list", action="store_true", help="list the targets and end")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(targets()))
        return 0
    if options.target is None:
        parser.error("name a target")
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed: pip install atheris")
    return fuzz(options.target, options.seconds, options.seed, keep=options.keep)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
