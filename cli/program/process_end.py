"""The end of a command's process."""

import atexit
import os
import sys
import threading
from typing import NoReturn


def end_process(ended: SystemExit) -> NoReturn:
    """End the process as ``ended`` says, without freeing its modules one by one.

    For a command that asks a broker, that would be a fifth of its processor time. Functions
    registered with atexit are called, and output is written, as always. With another thread, or if
    output cannot be written, Python ends the process.
    """
    code = 0 if ended.code is None else ended.code
    if not isinstance(code, int) or threading.active_count() > 1:
        raise ended
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public name
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        raise ended from None
    os._exit(code & 0xFF)
