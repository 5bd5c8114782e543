"""The script for ``spark-submit``: ``spark-submit [FLAGS] spark_submit.py audit --nats-url URL``.

The arguments after it are those of ``foldmq spark``. The session is the one that spark-submit
configures; ``docs/spark.md`` describes how to install foldmq on the machines of a cluster.
"""

import contextlib
import sys
from pathlib import Path


def _run() -> None:
    # Python puts the script's directory first, but its modules are not top-level modules.
    here = Path(__file__).parent
    sys.path[:] = [path for path in sys.path if Path(path or ".").absolute() != here.absolute()]
    try:
        # In a wheel, foldmq has the path of the others. It is missing where only they were shipped.
        with contextlib.suppress(ModuleNotFoundError):
            import foldmq  # noqa: F401
        from cli.main import main
    except ModuleNotFoundError as error:
        missing = "foldmq" if (error.name or "").partition(".")[0] == "cli" else error.name
        sys.stderr.write(
            f"foldmq: the driver lacks {missing}: set PYSPARK_DRIVER_PYTHON to a Python that has "
            "foldmq and its dependencies installed, see docs/spark.md\n"
        )
        sys.exit(69)
    sys.argv[1:1] = ["spark"]
    main()


if __name__ == "__main__":
    _run()
