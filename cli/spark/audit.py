"""``foldmq audit``: checks the guarantees over a log, and the broker's state against it.

``foldmq spark audit`` does the same with Spark, if the log is large.
"""

import dataclasses
import sys

import typer

from cli.common import text
from cli.logs.next_commands import NextCommands
from cli.logs.point_resolution import parse_point
from cli.spark.claimed_states import (
    ClaimedStates,
    claims_of_brokers,
    claims_of_projections,
    no_claims,
    with_open_ends,
)
from cli.spark.job_runner import Job, check_html, run_job, save_html, write_result
from cli.spark.spark_flags import AuditFlags, SparkFlags
from eventstore.errors import UsageError
from projections.audit.audit_outcome import Outcome
from projections.audit.log_summary import restored_text
from spark.jobs.pipeline import SMALL, all_here, audit, limits_here
from spark.report.json_report import audit_json
from spark.report.text_report import audit_text
from spark.runtime.session import is_submitted

_TOO_LARGE = (
    "the log is too large to be audited in half of the free memory: use 'foldmq spark audit'"
)


def run_audit(flags: SparkFlags, options: AuditFlags, *, as_json: bool, spark: bool) -> None:
    """Audit, print the report, also as HTML into a file; raise typer.Exit if there are violations.

    Brokers are not queried if it is as of a moment ``at``, because they know only the present, or
    if the log is audited ``alone``; with ``stored`` the stored projections are compared instead.
    Without ``spark`` in this process, else only small logs. Raises NoLiveBroker if the broker is to
    be compared and does not answer, and OutOfMemory without Spark for a log that needs it.
    """
    at, html, stored = options.at, options.html, options.stored
    if stored and options.no_broker:
        raise UsageError("--stored and --no-broker cannot be combined")
    if stored and at is not None:
        raise UsageError(
            "--stored and --at cannot be combined: the projections are stored only for the present"
        )
    if html is not None:
        check_html(html)
    moment = None if at is None else parse_point(at)
    alone = options.no_broker or moment is not None
    gather = no_claims if alone else claims_of_projections if stored else claims_of_brokers

    # A given master asks for Spark.
    small = flags.master is not None or is_submitted()
    limits = all_here() if not spark else SMALL if small else limits_here()

    def work(job: Job, claims: ClaimedStates) -> Outcome:
        with job.busy("auditing") as tell:
            result = audit(
                job.log, claims.rows, cluster=options.cluster, progress=tell, local=limits
            )
        nodes, notes = [], [*result.notes, *claims.notes]
        for node in result.nodes:
            end, owner = claims.ends.get(node.node), claims.owners.get(node.node)
            if end is not None:
                node = dataclasses.replace(node, doubts=(*node.doubts, end))
            if owner is not None:
                notes.append(restored_text(owner, node.node))
                node = dataclasses.replace(node, node=owner)
            nodes.append(node)
        return dataclasses.replace(result, nodes=tuple(nodes), notes=tuple(notes))

    outcome = run_job(
        flags,
        moment,
        with_open_ends(gather),
        work,
        when_needed=True,
        too_large=None if spark else _TOO_LARGE,
    )
    complete = NextCommands(flags.source).in_text
    if html is not None:
        from spark.report.html_report import audit_page  # it needs Jinja

        save_html(html, audit_page(outcome, complete))
    if as_json:
        write_result(text.json_line(audit_json(outcome, complete)))
    else:
        sys.stdout.write(audit_text(outcome, complete))
    if not outcome.kept:
        raise typer.Exit(1)
