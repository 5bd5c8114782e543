"""``foldmq spark``: Spark jobs on a log."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.sparkjobs import spark_commands
else:
    __getattr__ = front_door(
        __name__,
        {
            "spark_commands": "spark_commands",
        },
    )

__all__ = ["spark_commands"]
