"""The assignment of test files to workers: long ones first, those with Spark on few workers.

A long file that begins last keeps one worker busy while the others are idle. A Spark takes half a
minute of a processor to start and to warm up, and more than one processor while it works.
"""

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

LONG = {
    "tests/actors/test_record_sizes.py": 20,
    "tests/cli/test_commands.py": 30,
    "tests/cli/test_serve.py": 15,
    "tests/cli/test_top_app.py": 20,
    "tests/conformance_mqtt5/test_authentication.py": 15,
    "tests/conformance_mqtt5/test_expiry.py": 15,
    "tests/conformance_mqtt5/test_sessions.py": 15,
    "tests/e2e/test_abuse.py": 20,
    "tests/e2e/test_archive_command.py": 30,
    "tests/e2e/test_bridge_trouble.py": 20,
    "tests/e2e/test_clients_mqtt5.py": 25,
    "tests/e2e/test_cluster.py": 20,
    "tests/e2e/test_crash_drills.py": 40,
    "tests/e2e/test_cut_logs.py": 20,
    "tests/e2e/test_docs_commands_run.py": 30,
    "tests/e2e/test_drills_disk.py": 25,
    "tests/e2e/test_drills_replicas.py": 20,
    "tests/e2e/test_edges.py": 35,
    "tests/e2e/test_listeners_mqttjs.py": 15,
    "tests/e2e/test_log_bounds.py": 15,
    "tests/e2e/test_log_faults.py": 75,
    "tests/e2e/test_log_tools.py": 25,
    "tests/e2e/test_nats_clients.py": 15,
    "tests/e2e/test_operator_access.py": 20,
    "tests/e2e/test_operator_changes.py": 25,
    "tests/e2e/test_operator_commands.py": 45,
    "tests/e2e/test_partitioned_cluster.py": 50,
    "tests/e2e/test_power_cut.py": 50,
    "tests/e2e/test_processes.py": 60,
    "tests/e2e/test_rebuild_command.py": 15,
    "tests/e2e/test_restart.py": 15,
    "tests/e2e/test_service.py": 15,
    "tests/e2e/test_settings.py": 15,
    "tests/e2e/test_spark_jobs.py": 110,
    "tests/e2e/test_stop_drills.py": 20,
    "tests/e2e/test_tail.py": 15,
    "tests/e2e/test_top.py": 20,
    "tests/e2e/test_verify.py": 35,
    "tests/e2e/test_web.py": 45,
    "tests/e2e/test_web_access.py": 15,
    "tests/e2e/test_web_browser.py": 60,
    "tests/eventstore/log/test_jetstream_log.py": 15,
    "tests/eventstore/test_salvage.py": 15,
    "tests/projections/test_indexing.py": 20,
    "tests/protocol/mqtt/test_decoder.py": 15,
    "tests/simulation/test_chaos.py": 85,
    "tests/simulation/test_log_bounds.py": 15,
    "tests/simulation/test_partition_shares.py": 40,
    "tests/simulation/test_partitioned_nodes.py": 60,
    "tests/simulation/test_partitions.py": 35,
    "tests/spark/test_archive.py": 75,
    "tests/spark/test_archive_files.py": 15,
    "tests/spark/test_archive_writer.py": 15,
    "tests/spark/test_audit_broker.py": 20,
    "tests/spark/test_audit_mutations.py": 20,
    "tests/spark/test_audit_rules.py": 50,
    "tests/spark/test_audit_scale.py": 20,
    "tests/spark/test_decoding.py": 20,
    "tests/spark/test_log_generator.py": 40,
    "tests/spark/test_rebuild.py": 30,
    "tests/spark/test_recovery.py": 35,
    "tests/spark/test_report_browser.py": 25,
    "tests/spark/test_report_page.py": 15,
    "tests/spark/test_source.py": 60,
    "tests/spark/test_stats.py": 20,
    "tests/spark/test_streaming.py": 20,
}
"""About how many seconds a file takes; others take less. Only the order matters."""


_ROOT = Path(__file__).parents[2]
_WORKERS_PER_SPARK = 4
_WORTH_A_SPARK = 60
"""Seconds of work that each Spark must have left before one more is started."""
_SHORT = 5
"""About how many seconds a file takes that needs Spark and is not long."""


class LongFirst(LoadFileScheduling):
    """Gives whole files to workers, in that order."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        best = self._best_of(node)
        if needs_spark(best) and not self._may_have_spark(node):
            node.shutdown()  # what is left is for those that have one
            return
        self.workqueue.move_to_end(best, last=False)
        super()._assign_work_unit(node)

    def _with_spark(self) -> list[WorkerController]:
        """The workers that have started a Spark, or will."""
        return [one for one, files in self.assigned_work.items() if any(map(needs_spark, files))]

    def _may_have_spark(self, node: WorkerController) -> bool:
        """Whether the worker has a Spark, or what is left is worth another one."""
        with_spark = self._with_spark()
        left = sum(LONG.get(file, _SHORT) for file in self.workqueue)
        return node in with_spark or left >= _WORTH_A_SPARK * len(with_spark)

    def _best_of(self, node: WorkerController) -> str:
        with_spark = self._with_spark()
        most = max(1, len(self.assigned_work) // _WORKERS_PER_SPARK)
        wants = node in with_spark or len(with_spark) < most
        # What is left over is taken in any case: max() gives the first of the best.
        return max(self.workqueue, key=lambda file: (needs_spark(file) == wants, LONG.get(file, 0)))


@cache
def needs_spark(file: str) -> bool:
    """Whether tests of the file use the session that a worker starts once."""
    text = (_ROOT / file).read_text("utf-8")
    return "SparkSession" in text or 'getfixturevalue("spark")' in text
