"""Which worker takes which test file next: long ones first, those with Spark on half of them.

A long file that begins last keeps one worker busy while the others have nothing left. A Spark
takes long to start and to get warm, and a processor or more while it works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

LONG = {
    "tests/actors/test_record_sizes.py": 20,
    "tests/cli/test_commands.py": 30,
    "tests/cli/test_serve.py": 15,
    "tests/cli/test_top_app.py": 20,
    "tests/conformance5/test_expiry.py": 15,
    "tests/conformance5/test_sessions.py": 15,
    "tests/e2e/test_archive_command.py": 50,
    "tests/e2e/test_bridge_trouble.py": 20,
    "tests/e2e/test_crash_drills.py": 190,
    "tests/e2e/test_cut_logs.py": 20,
    "tests/e2e/test_drills_disk.py": 50,
    "tests/e2e/test_listeners_mqttjs.py": 15,
    "tests/e2e/test_log_bounds.py": 15,
    "tests/e2e/test_log_faults.py": 100,
    "tests/e2e/test_log_tools.py": 25,
    "tests/e2e/test_nats_clients.py": 15,
    "tests/e2e/test_operator_access.py": 20,
    "tests/e2e/test_operator_changes.py": 25,
    "tests/e2e/test_operator_commands.py": 45,
    "tests/e2e/test_power_cut.py": 55,
    "tests/e2e/test_restart.py": 15,
    "tests/e2e/test_service.py": 15,
    "tests/e2e/test_spark_jobs.py": 110,
    "tests/e2e/test_tail.py": 15,
    "tests/e2e/test_top.py": 20,
    "tests/e2e/test_verify.py": 35,
    "tests/e2e/test_web.py": 45,
    "tests/e2e/test_web_browser.py": 65,
    "tests/eventstore/log/test_jetstream_log.py": 15,
    "tests/harness/test_sparklimits.py": 25,
    "tests/simulation/test_chaos.py": 70,
    "tests/simulation/test_log_bounds.py": 15,
    "tests/simulation/test_mutations.py": 20,
    "tests/spark/test_archive.py": 210,
    "tests/spark/test_archive_files.py": 15,
    "tests/spark/test_archive_writer.py": 15,
    "tests/spark/test_audit_broker.py": 20,
    "tests/spark/test_audit_mutations.py": 20,
    "tests/spark/test_audit_rules.py": 105,
    "tests/spark/test_audit_scale.py": 40,
    "tests/spark/test_audit_simulation.py": 25,
    "tests/spark/test_decoding.py": 20,
    "tests/spark/test_loggen.py": 30,
    "tests/spark/test_rebuild.py": 100,
    "tests/spark/test_recovery.py": 35,
    "tests/spark/test_report_browser.py": 25,
    "tests/spark/test_report_page.py": 15,
    "tests/spark/test_source.py": 80,
    "tests/spark/test_stats.py": 20,
    "tests/spark/test_streaming.py": 85,
}
"""About how many seconds a file takes; others take less. Only the order matters."""


_OTHERS = ("tests/e2e/test_archive_command.py", "tests/e2e/test_crash_drills.py")
"""Files of other folders whose tests use the Spark of the worker."""


class LongFirst(LoadFileScheduling):
    """Gives whole files to workers, in that order."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(self._best_of(node), last=False)
        super()._assign_work_unit(node)

    def _best_of(self, node: WorkerController) -> str:
        with_spark = [
            one for one, files in self.assigned_work.items() if any(map(needs_spark, files))
        ]
        wants = node in with_spark or len(with_spark) < (len(self.assigned_work) + 1) // 2
        # What is left over is taken in any case: max() gives the first of the best.
        return max(self.workqueue, key=lambda file: (needs_spark(file) == wants, LONG.get(file, 0)))


def needs_spark(file: str) -> bool:
    """Whether tests of the file use the session that a worker starts once."""
    return file.startswith("tests/spark/") or file in _OTHERS
