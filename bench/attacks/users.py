"""Users of a broker under attack, and the file of their passwords."""

import subprocess
import sys
from pathlib import Path

from bench.brokers.broker_processes import ROOT

USER, PASSWORD = "guest", "open sesame"
"""Password of all clients that are accepted, well-behaved or not."""
NEWCOMERS = 300
"""Number of users newcomer-0, newcomer-1 and so on, whose password is not cached yet."""


def add_user(passwords: Path) -> None:
    """Write the password file."""
    command = [sys.executable, "-m", "cli.main", "passwd", str(passwords), USER, "--password-stdin"]
    subprocess.run(
        command, cwd=ROOT, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True
    )
    name, _, secret = passwords.read_text().strip().partition(":")
    names = (name, *(f"newcomer-{number}" for number in range(NEWCOMERS)))
    passwords.write_text("".join(f"{each}:{secret}\n" for each in names))
