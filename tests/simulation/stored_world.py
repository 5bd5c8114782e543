"""A world whose log has a data directory: blocks, a watermark, and a disk that may be full.

The stream is in memory, as in every world, and is also written to a block, through an open file as
by a NATS server: which goes on writing to files that were removed. What the broker finds out about
these files is found by its own code, on real files.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from eventstore.datadir import DataDir
from eventstore.format.records import decode_record
from eventstore.log.watermark import Watermark
from eventstore.reading.stored_blocks import framed
from eventstore.server.disk_recovery import DiskRecovery
from simulation.compacted_stream import MemoryKeyedStore
from simulation.jetstream import SimServer, SimStream
from simulation.loop import VirtualLoop
from simulation.world import STREAM, SUBJECT, Disk, SimLog, World

T = TypeVar("T")
PLENTY = 10**15
"""Free bytes of a disk that is not full."""
MARK = "log.mark"


class WorkAtOnce(VirtualLoop):
    """An event loop that does the work of other threads at once, so that runs are reproducible."""

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, work: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        done = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as error:  # noqa: BLE001 - for the one who waits
            done.set_exception(error)
        return done


class Host(DataDir):
    """A data directory on a disk whose free space the simulation decides."""

    free = PLENTY

    def free_bytes(self) -> int:
        return self.free


class _Stream(SimStream):
    """A stream that is also in a block of a data directory."""

    def __init__(self, block: Path, records: Mapping[int, bytes]) -> None:
        super().__init__(STREAM, SUBJECT)
        block.parent.mkdir(parents=True)
        self.file = os.open(block, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.first = min(records, default=1)
        self.last = self.first - 1
        for data in records.values():
            self.store(data, decode_record(self.last + 1, data).link.hex())

    def store(self, data: bytes, message_id: str = "") -> int:
        sequence = super().store(data, message_id)
        os.write(self.file, framed(sequence, SUBJECT, data))
        return sequence


class StoredWorld(World):
    """A world with a data directory below ``folder``; its log may be put into another one."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self._folder = folder
        self._directories = 0
        self._stream: _Stream | None = None
        self.recovery: DiskRecovery | None = None
        self.move({})

    def move(self, records: Mapping[int, bytes]) -> Host:
        """Give the log a new data directory that contains records, and no watermark."""
        self._close()
        self._directories += 1
        self.host = Host(self._folder / f"data{self._directories}")
        stream = self._stream = _Stream(self.block, records)
        self.server = SimServer(self.faults, stream)
        self.server.on_step = self.step
        self.disk = Disk(stream)
        self.keyed = MemoryKeyedStore()
        return self.host

    @property
    def block(self) -> Path:
        """The block with the log."""
        return self.host.blocks(STREAM) / "1.blk"

    def mark(self) -> Watermark:
        """Return the watermark of the data directory, for a reader."""
        return Watermark(self.host.path / MARK, STREAM, beside=True)

    def open_log(self) -> SimLog:
        self._close_files()
        watermark: Any = self.mark()
        self.watermark = watermark
        log = SimLog(self.server, watermark, self.keyed)
        self.recovery = log._recovery = DiskRecovery(self.host, None, STREAM)
        return log

    async def start(self) -> None:
        await super().start()
        self.broker.inspection.storage.free_bytes = self.host.free_bytes

    async def crash(self, keep: int = 0) -> None:
        await super().crash(keep)
        self._close_files()

    def _close_files(self) -> None:
        """Close what a process had open that is no more."""
        files = self.recovery._files if self.recovery is not None else None
        for holder, name in ((files, "_held"), (self.watermark, "_file")):
            file = getattr(holder, name, None)
            if file is not None:
                os.close(file)
                setattr(holder, name, None)
        self.recovery = None
        self.watermark = self.mark()  # type: ignore[assignment]

    def _close(self) -> None:
        if self._stream is not None:
            os.close(self._stream.file)
