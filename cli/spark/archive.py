"""``foldmq spark archive``: archives new records of a log and notifies the broker."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

from cli.commands.bulk_change import operator_name
from cli.common import text
from cli.logs.broker_client import LiveBroker, NoAnswer, NoLiveBroker
from cli.logs.source import write_notice
from cli.spark.job_runner import Job, run_job, write_result
from cli.spark.log_location import Found, absolute
from cli.spark.spark_flags import SparkFlags
from eventstore.nats.connection import disconnect
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from protocol.errors import FoldmqError
from spark.jobs.archive_job import archive_one
from spark.jobs.archive_plan import PendingArchive, archived_extent, plan_archive
from spark.tables.archive_writer import ArchiveExtent
from spark.tables.nats_access import NatsAccess


class Brokers:
    """The brokers of the archived logs, notified of the archived position."""

    def __init__(self, options: Mapping[str, str], where: str, *, live: bool) -> None:
        self._access = NatsAccess(options)
        self._where = where
        self._live = live

    def notify(self, archived: ArchiveExtent) -> None:
        """Notify the broker of the archived part of its log.

        Raises NoLiveBroker, NoAnswer, or Refused with its message.
        """
        node = archived.stream.removeprefix(LOG_STREAM_PREFIX)
        if not self._live or node == archived.stream:
            raise NoLiveBroker(f"no broker is running on {self._where}")
        asyncio.run(self._notify_now(node, archived))

    def try_to_notify(self, archived: ArchiveExtent) -> None:
        """Notify the broker now if possible; it is notified again at the end."""
        with contextlib.suppress(FoldmqError):
            self.notify(archived)

    async def _notify_now(self, node: str, archived: ArchiveExtent) -> None:
        client = await self._access.open()
        try:
            await LiveBroker(node, self._where, client).ask(
                "change",
                do="archived",
                by=operator_name(),
                through=archived.through,
                link=archived.link,
                where=archived.where,
            )
        finally:
            await disconnect(client)


@dataclasses.dataclass(slots=True)
class Report:
    """The result for each log."""

    archived: list[ArchiveExtent] = dataclasses.field(default_factory=list)
    problems: list[FoldmqError] = dataclasses.field(default_factory=list)


def run_archive(flags: SparkFlags, directory: str, *, as_json: bool) -> None:
    """Archive new records, notify the brokers, and print the result.

    An error in one log does not stop the others; the first error is raised at the end. A broker
    that is not running is no error: it is notified at the next run.
    """
    place = absolute(directory)
    found_at: list[Found] = []

    async def look(location: Found) -> list[PendingArchive]:
        found_at.append(location)
        return await plan_archive(location.options, place)

    def add(job: Job, logs: list[PendingArchive]) -> Report:
        brokers = _brokers(job.found)
        report = Report()
        for log in logs:
            with job.busy(f"archiving {text.count_of(log.records, 'record')}"), _noted(report):
                report.archived.append(archive_one(job.spark(), log, brokers.try_to_notify))
        return report

    def nothing(logs: list[PendingArchive]) -> Report | None:
        """Return the result if there are no new records, without starting Spark."""
        if any(log.problem is None and log.records for log in logs):
            return None
        report = Report()
        for pending in logs:
            with _noted(report):
                report.archived.append(archived_extent(pending))
        return report

    report = run_job(flags, None, look, add, nothing)
    brokers = _brokers(found_at[0])
    for archived in report.archived:
        is_told = False
        with _noted(report):
            is_told = _notify(brokers, archived)
        write_result(
            text.json_line(_as_object(archived, is_told=is_told)) if as_json else _words(archived)
        )
    for problem in report.problems[1:]:
        write_notice(str(problem))
    if report.problems:
        raise report.problems[0]


@contextlib.contextmanager
def _noted(report: Report) -> Iterator[None]:
    try:
        yield
    except FoldmqError as error:
        report.problems.append(error)


def _brokers(location: Found) -> Brokers:
    return Brokers(location.options, location.where, live=location.live)


def _notify(brokers: Brokers, archived: ArchiveExtent) -> bool:
    """Notify the broker of a log; return whether it was reached. Raises NoAnswer or Refused."""
    if not archived.through:
        return False
    try:
        brokers.notify(archived)
    except NoAnswer:
        raise
    except NoLiveBroker as error:
        write_notice(f"the broker will be notified at the next run: {error}")
        return False
    return True


def _words(archived: ArchiveExtent) -> str:
    stream = text.name(archived.stream)
    if not archived.through:
        return f"{stream} has no records yet"
    reach = f"up to record {archived.through} of {text.clock(archived.ends_ms)}"
    if not archived.records:
        return f"{stream}: nothing new, archived {reach}"
    return (
        f"{stream}: archived {text.count_of(archived.records, 'record')} "
        f"({text.size(archived.size)}, {text.size(archived.file_bytes)} in "
        f"{text.count_of(archived.files, 'file')}), {reach}"
    )


def _as_object(archived: ArchiveExtent, *, is_told: bool) -> dict[str, object]:
    fields: dict[str, object] = dataclasses.asdict(archived)
    del fields["ends_ms"]
    time = text.iso(archived.ends_ms) if archived.through else None
    return {**fields, "time": time, "told": is_told}
