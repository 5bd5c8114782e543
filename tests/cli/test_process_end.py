"""The end of a command's process: nothing that is to happen at exit is left out."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import atexit, sys, threading, time
from cli.program.process import end_process

class Freed:
    def __del__(self):
        print("freed")

kept = Freed()
kept.itself = kept
atexit.register(print, "at exit")
print("written" * 5000)
{before}
try:
    sys.exit({code})
except SystemExit as ended:
    end_process(ended)
"""
THREAD = "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()"


def ended(code: object, before: str = "") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(code=code, before=before)
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (0, 0), (69, 69), (130, 130)])
def test_output_is_written_and_functions_are_called(code: int | None, expected: int) -> None:
    done = ended(code)
    assert (done.returncode, done.stderr) == (expected, "")
    assert done.stdout == "written" * 5000 + "\nat exit\n", "and nothing was freed one by one"


def test_a_thread_is_waited_for() -> None:
    done = ended(3, THREAD)
    assert done.returncode == 3
    assert "thread\nat exit\n" in done.stdout


def test_a_text_is_written_to_stderr() -> None:
    done = ended("'a text'")
    assert (done.returncode, done.stderr) == (1, "a text\n")
    assert "at exit\n" in done.stdout
