"""Runs foldmq on a terminal of its own, as a person does."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from dataclasses import dataclass

from harness import forkserver
from harness.broker import environment, foldmq

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _lead() -> None:
    """Makes the terminal that is stdin the one that Ctrl-C is pressed on."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@dataclass(frozen=True, slots=True)
class Shown:
    code: int
    text: str
    """All that was written, without colours; nothing else that controls a terminal is in it."""

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


class Terminal:
    """One command; what it asks is answered with `answer`. Forked, unless it is to be started."""

    def __init__(self, *arguments: str, width: int = 80, forked: bool = True) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        env = {**environment(), "TERM": "xterm-256color", "COLUMNS": str(width)}
        self._process: subprocess.Popen[bytes] | forkserver.Process
        if forked:
            self._process = forkserver.start(arguments, env, slave, slave, slave)
        else:
            self._process = subprocess.Popen(
                [foldmq(), *arguments],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=env,
                preexec_fn=_lead,
            )
        os.close(slave)
        self._shown = b""

    def until(self, words: str, seconds: float = 40.0) -> str:
        """Waits until it has written these words; returns all that it wrote."""
        deadline = time.monotonic() + seconds
        while words.encode() not in self._shown:
            assert time.monotonic() < deadline, f"{words!r} is not in {self._shown!r}"
            assert self._read(), f"ended without {words!r}: {self._shown!r}"
        return self._shown.decode()

    def seen(self) -> str:
        """What it has written up to now."""
        if select.select([self._master], [], [], 0)[0]:
            self._read()
        return self._shown.decode()

    def answer(self, words: str) -> None:
        os.write(self._master, words.encode() + b"\n")

    def interrupt(self) -> None:
        """Presses Ctrl-C."""
        os.write(self._master, b"\x03")

    def ended(self, code: int = 0) -> Shown:
        """Waits for its end, which must be with this exit code."""
        while self._read():
            pass
        found = self._process.wait(40)
        os.close(self._master)
        shown = _COLOUR.sub("", self._shown.decode().replace("\r\n", "\n"))
        assert found == code, shown
        assert "Traceback" not in shown
        assert all(line.isprintable() for line in shown.split("\n")), shown
        return Shown(found, shown)

    def _read(self) -> bool:
        """Reads what there is; False when the command has closed the terminal."""
        if not select.select([self._master], [], [], 40.0)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux says so when the other side is closed
            return False
        self._shown += data
        return bool(data)
