"""Password files in the form in which an operator writes them."""

from pathlib import Path

from harness import forkserver
from harness.broker import environment


def add_user(file: Path, user: str, password: str) -> None:
    command = ("passwd", str(file), user, "--password-stdin")
    code, _, err = forkserver.run(command, environment(), 30, f"{password}\n".encode())
    assert code == 0, err
