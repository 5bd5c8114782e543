"""Shell completion: the candidates for the last word."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import forkserver

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.system


def completed(*words: str) -> list[str]:
    code, out, err = forkserver.run(["complete", "--", *words], dict(os.environ), 60)
    assert (code, err) == (0, b"")
    return [line.partition("\t")[0] for line in out.decode().splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sess"], ["sessions"]),
        (["sessions", ""], ["ls", "show", "kick", "rm", "purge"]),
        (["sessions", "ls", "--o"], ["--offline", "--older-than"]),
        (["sessions", "ls", "--match", ""], []),
        (["acl", "check", "ann", "pump", "p"], ["publish"]),
        (["acl", "check", "p"], []),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["serve", "--tls-client-certs", "o"], ["optional"]),
        (["nonsense", ""], []),
    ],
)
def test_words_are_completed(words: list[str], expected: list[str]) -> None:
    assert completed(*words) == expected


def test_each_word_has_its_help() -> None:
    _, out, _ = forkserver.run(["complete", "--", "wh"], dict(os.environ), 60)
    assert out == b"why\tExplain what happened to a message.\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_valid(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    code, script, _ = forkserver.run(["completion", shell], dict(os.environ), 60)
    assert code == 0
    subprocess.run([program, "-n"], input=script, check=True, timeout=60)


def test_bash_completes(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    program = tmp_path / "foldmq"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cli.main "$@"\n')
    program.chmod(0o755)
    _, script, _ = forkserver.run(["completion", "bash"], dict(os.environ), 60)
    commands = (
        f"{script.decode()}\nCOMP_WORDS=(foldmq sessions s); COMP_CWORD=2; _foldmq; "
        'echo "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = subprocess.run(
        [bash, "-c", commands], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60
    )
    assert (found.stdout, found.stderr) == ("show\n", "")
