"""Runs suggested commands as an operator does: pasted into a shell in another directory."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from harness.broker import environment


def run_as_pasted(commands: Iterable[str], cwd: Path, **variables: str) -> None:
    """Run each command; none may fail because of how it is written."""
    for command in sorted(set(commands)):
        bounded = command
        if " actors tail " in command:  # until it is stopped
            bounded = f"timeout -s INT 3 {command}"
        elif " top " in command:  # needs a terminal
            bounded += " --once"
        done = subprocess.run(
            ["/bin/bash", "-c", bounded],
            cwd=cwd,
            env={**environment(), **variables},
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        # What is to be repaired is invalid until then.
        invalid = (78,) if " config check " in command else ()
        assert done.returncode in (0, 1, 124, 130, *invalid), (command, done.stderr)
        assert "Usage" not in done.stderr, (command, done.stderr)
        assert "Traceback" not in done.stderr, (command, done.stderr)
        assert "no session" not in done.stderr or "--type" in command, (command, done.stderr)


def pasted(command: str, cwd: Path, code: int) -> str:
    """Run a command that ends with this exit code, and return what it prints."""
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=cwd,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, (command, done.stdout, done.stderr)
    return done.stdout
