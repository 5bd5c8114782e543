"""The README's commands and its configuration work as printed (on a free port)."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from harness.broker import environment, free_port

from cli.settings.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """Give the fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def expected_output() -> str:
    """Return the indented block that follows the only shell block."""
    rest = README.rpartition("```sh\n")[2].partition("```\n")[2]
    lines = re.findall(r"(?m)^    .*$", rest.partition("\n## ")[0])
    return textwrap.dedent("\n".join(lines) + "\n")


def test_configuration_is_accepted(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    config = tmp_path / "config.toml"
    config.write_text(text)
    settings = load_settings({}, {}, config)
    assert settings.model_fields_set == set(tomllib.loads(text))


@pytest.mark.drill
@pytest.mark.system
@pytest.mark.parametrize(
    "runs",
    [
        "nothing",
        pytest.param("another broker", marks=pytest.mark.long),
        "another broker on its port",
    ],
)
def test_the_block_works_when_it_is_pasted(tmp_path: Path, runs: str) -> None:
    """Also while the broker of "Run it" runs, which it leaves alone, or it says why it cannot."""
    (block,) = blocks("sh")
    port = free_port()
    taken = runs.endswith("port")
    other = port if taken else free_port()
    assert "11883" in block
    block = block.replace("11883", str(port))
    program = tmp_path / ".venv" / "bin" / "foldmq"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cli.main "$@"\n')
    program.chmod(0o755)
    others = {"FOLDMQ_WEB": "off", "FOLDMQ_METRICS": "off", "PYTHONPATH": str(ROOT)}
    if runs != "nothing":
        ready = f"foldmq sub -p {other} -t ready -E; " if taken else ""
        first = f"foldmq serve --listen 127.0.0.1:{other} 2>first.log & first=$!\n{ready}"
        block = f"{first}{block}"
        block = f'PATH="$PWD/.venv/bin:$PATH"\n{block}kill $first; wait $first\n'
    shell = subprocess.Popen(
        ["bash", "-s"],  # as from a clipboard: what reads its input takes the lines that follow
        cwd=tmp_path,
        env={**environment(), **others},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = shell.communicate(block, timeout=200)
    except subprocess.TimeoutExpired:
        # The shell and the broker it started are a process group of their own.
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    if taken:
        assert f"cannot listen on 127.0.0.1:{port}: another program" in out
        return
    assert out == expected_output(), errors
    assert shell.returncode == 0, errors
    assert "Traceback" not in errors
