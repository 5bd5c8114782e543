"""``foldmq spark audit``: checks the guarantees over a log, and the broker's state against it."""

import dataclasses
import errno
import os
import sys
from pathlib import Path

from cli.common import text
from cli.logsource import parse_point
from cli.sparkjobs.claimed_states import (
    ClaimedStates,
    claims_of_brokers,
    claims_of_projections,
    no_claims,
)
from cli.sparkjobs.job_runner import Job, run_job, write_result
from cli.sparkjobs.spark_flags import SparkFlags
from eventstore.errors import UsageError
from spark.audit import audit
from spark.audit.facts import Outcome
from spark.report import audit_json, audit_page, audit_text, require_matplotlib
from spark.runtime import NotWritable


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The options of an audit."""

    at: str | None
    """Audit as of this moment; brokers are not queried then, because they know only the present."""
    html: Path | None
    """File for the report as HTML."""
    as_json: bool
    stored: bool
    """Compare with the stored projections instead of the broker."""
    alone: bool
    """Do not compare with the broker."""
    cluster: bool
    """Whether the nodes form one cluster."""


def run_audit(flags: SparkFlags, wanted: Wanted) -> bool:
    """Audit, print the report; return whether there is no violation.

    Raises NoLiveBroker if the broker is to be compared and does not answer.
    """
    if wanted.stored and wanted.alone:
        raise UsageError("--stored and --no-broker cannot be combined")
    if wanted.stored and wanted.at is not None:
        raise UsageError(
            "--stored and --at cannot be combined: the projections are stored only for the present"
        )
    if wanted.html is not None:
        require_matplotlib()
        _check_file(wanted.html)
    moment = None if wanted.at is None else parse_point(wanted.at)
    nobody = wanted.alone or moment is not None
    gather = no_claims if nobody else claims_of_projections if wanted.stored else claims_of_brokers

    def work(job: Job, claims: ClaimedStates) -> Outcome:
        with job.busy("auditing") as tell:
            found = audit(job.log, claims.rows, cluster=wanted.cluster, progress=tell)
        return dataclasses.replace(found, notes=(*found.notes, *claims.notes))

    outcome = run_job(flags, moment, gather, work)
    if wanted.html is not None:
        _save(wanted.html, audit_page(outcome))
    if wanted.as_json:
        write_result(text.json_line(audit_json(outcome)))
    else:
        sys.stdout.write(audit_text(outcome))
    return outcome.kept


def _check_file(file: Path) -> None:
    """Raise NotWritable before the job if the file cannot be written."""
    directory = file.parent
    if file.is_dir():
        raise NotWritable(f"--html {text.escaped(str(file))}: is a directory, give a file")
    if not directory.is_dir():
        raise _unwritable(file, os.strerror(errno.ENOENT))
    if not os.access(file if file.exists() else directory, os.W_OK):
        raise _unwritable(file, os.strerror(errno.EACCES))


def _save(file: Path, content: str) -> None:
    try:
        file.write_text(content, "utf-8")
    except OSError as error:
        raise _unwritable(file, error.strerror or "failed") from None


def _unwritable(file: Path, why: str) -> NotWritable:
    return NotWritable(f"cannot write {text.escaped(str(file))}: {why.lower()}")
