"""What ``spark-submit`` runs: ``spark-submit [FLAGS] spark_submit.py audit --nats-url URL``.

The arguments behind it are those of ``foldmq spark``. The session is the one that spark-submit
describes; see ``docs/spark.md`` for how foldmq gets to the machines of a cluster.
"""

import sys
from pathlib import Path


def _run() -> None:
    # Python puts the directory of a script first: the modules there are no top-level ones.
    here = Path(__file__).parent
    sys.path[:] = [path for path in sys.path if Path(path or ".").absolute() != here.absolute()]
    try:
        from cli.main import main
    except ModuleNotFoundError as error:
        missing = "foldmq" if (error.name or "").partition(".")[0] == "cli" else error.name
        sys.stderr.write(
            f"foldmq: the driver does not have {missing}: start spark-submit with a Python that "
            "has foldmq and what it needs (PYSPARK_DRIVER_PYTHON), see docs/spark.md\n"
        )
        sys.exit(69)
    sys.argv[1:1] = ["spark"]
    main()


if __name__ == "__main__":
    _run()
