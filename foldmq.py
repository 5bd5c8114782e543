"""The program as an installed package: ``foldmq`` and ``python -m foldmq``.

A wheel keeps the packages of foldmq in one folder, because their names (``cli``, ``protocol``)
are too common for ``site-packages``. ``foldmq_packages.pth`` adds it to the end of the path of each
Python of the environment, for the workers of Spark; the program puts it first, so that no package
of the same name takes precedence. A checkout has no such folder.
"""

import sys
from pathlib import Path
from typing import NoReturn

_PACKAGES = Path(__file__).with_name("foldmq_packages")
if _PACKAGES.is_dir():
    sys.path[:] = [str(_PACKAGES), *(path for path in sys.path if path != str(_PACKAGES))]


def run_program() -> NoReturn:
    """Run the command ``foldmq``."""
    from cli.main import run_program as run

    run()


if __name__ == "__main__":
    run_program()
