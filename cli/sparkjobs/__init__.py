"""``foldmq spark``: Spark jobs on a log."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.sparkjobs import spark_commands
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "spark_commands": "spark_commands",
        },
    )

__all__ = ["spark_commands"]
