"""The index of the log: ``foldmq log index``, and the process that writes it beside the broker."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.indexing import index_writer
    from cli.indexing.index_process import IndexProcess
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "index_process": "IndexProcess",
            "index_writer": "index_writer",
        },
    )

__all__ = ["IndexProcess", "index_writer"]
