"""Runs suggested commands as an operator does: pasted into a shell in another directory."""

import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

from harness import forkserver
from harness.broker import environment, foldmq

_SECONDS = 120.0


def _run(
    command: str, cwd: Path, variables: dict[str, str], stop_after: float | None = None
) -> tuple[int, str, str]:
    """Run a command, or several joined by ``&&``, in a shell; return exit code and output.

    The shell reads the words of foldmq's own commands, which are then forked.
    """
    first, joined, then = command.partition(" && ")
    if joined:
        code, out, err = _run(first, cwd, variables)
        if code == 0:
            code, more, err = _run(then, cwd, variables)
            out += more
        return code, out, err
    env = {**environment(), **variables}
    own = command.startswith(("foldmq ", f"{shlex.quote(foldmq())} "))
    shell = subprocess.run(
        ["/bin/bash", "-c", f"printf '%s\\0' {command}" if own else command],
        cwd=cwd,
        env=env,
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if not own or shell.returncode or shell.stderr:
        return shell.returncode, shell.stdout, shell.stderr
    _, *arguments = shell.stdout.removesuffix("\0").split("\0")
    code, printed, errors = forkserver.run(arguments, env, _SECONDS, cwd=cwd, stop_after=stop_after)
    return code, printed.decode(), errors.decode()


def run_as_pasted(commands: Iterable[str], cwd: Path, **variables: str) -> None:
    """Run each command; none may fail because of how it is written."""
    for command in sorted(set(commands)):
        endless = " actors tail " in command
        terminal = " top " in command
        code, _, err = _run(
            f"{command} --once" if terminal else command, cwd, variables, 3.0 if endless else None
        )
        # What is to be repaired is invalid until then.
        invalid = (78,) if " config check " in command else ()
        assert code in (0, 1, 130, *invalid), (command, err)
        assert "Usage" not in err, (command, err)
        assert "Traceback" not in err, (command, err)
        assert "no session" not in err or "--type" in command, (command, err)


def pasted(command: str, cwd: Path, code: int) -> str:
    """Run a command that ends with this exit code, and return what it prints."""
    found, out, err = _run(command, cwd, {})
    assert found == code, (command, out, err)
    return out
