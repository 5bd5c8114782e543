"""The README's commands and its configuration work as printed (on a free port)."""

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from cli.settings.settings import load

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """Give the fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def expected_output() -> str:
    """Give the indented block that follows the last shell block."""
    rest = README.rpartition("```sh\n")[2].partition("```\n")[2]
    lines = [line for line in rest.partition("`foldmq` is")[0].splitlines() if line]
    return textwrap.dedent("\n".join(lines) + "\n")


def test_configuration_is_accepted(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    config = tmp_path / "config.toml"
    config.write_text(text)
    settings = load({}, {}, config)
    assert settings.model_fields_set == set(tomllib.loads(text))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# What a person does between two commands: wait until the broker is up; give a name to the job.
SHELL = """
set -eu
foldmq() {{ {python} -m cli.main "$@"; }}
broker=""
ready() {{
  for _ in $(seq 300); do
    if (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; then return; fi
    sleep 0.1
  done
  echo "the broker did not start" >&2; exit 1
}}
end() {{
  code=$?
  if [ -n "$broker" ]; then kill "$broker"; wait "$broker" || code=$?; fi
  exit $code
}}
trap end EXIT
"""
SERVE = """{python} -m cli.main serve --listen 127.0.0.1:{port} --data-dir {data} &
broker=$!; ready"""


def script(port: int, data: Path) -> str:
    """Give the README's shell blocks as a script for ``port``."""
    facts = {"python": sys.executable, "port": port, "data": data}
    lines = []
    for line in "".join(blocks("sh")).splitlines():
        command = re.sub(r"^foldmq (pub|sub) ", rf"foldmq \1 -p {port} ", line)
        command = command.replace("foldmq serve &", SERVE.format(**facts))
        command = command.replace("kill -9 %1", 'kill -9 "$broker"; wait "$broker" || true')
        if "-W 1" in command:
            # Ends by its time limit, as meant: exit code 27.
            command += " || [ $? = 27 ]"
        lines.append(command)
    return SHELL.format(**facts) + "\n".join(lines) + "\n"


@pytest.mark.drill
def test_first_session(tmp_path: Path) -> None:
    text = script(free_port(), tmp_path / "data")
    shell = subprocess.Popen(
        ["bash", "-c", text],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = shell.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        # The shell and the broker it started are a process group of their own.
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    assert shell.returncode == 0, errors
    assert out == expected_output()
