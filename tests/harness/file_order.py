"""The assignment of test files to workers: long ones first, those with Spark on few workers.

A long file that begins last keeps one worker busy while the others are idle. A Spark takes half a
minute of a processor to start and to warm up, and more than one processor while it works.
"""

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

LONG = {
    "tests/actors/test_record_sizes.py": 15,
    "tests/cli/test_commands.py": 40,
    "tests/cli/test_deploy_cluster.py": 15,
    "tests/cli/test_importing.py": 15,
    "tests/cli/test_serve.py": 25,
    "tests/cli/test_spark_commands.py": 15,
    "tests/cli/test_top_app.py": 45,
    "tests/cli/test_unread_output.py": 30,
    "tests/conformance_mqtt5/test_authentication.py": 30,
    "tests/conformance_mqtt5/test_connack.py": 20,
    "tests/conformance_mqtt5/test_expiry.py": 25,
    "tests/conformance_mqtt5/test_flow.py": 15,
    "tests/conformance_mqtt5/test_replay.py": 25,
    "tests/conformance_mqtt5/test_sessions.py": 25,
    "tests/conformance_mqtt5/test_subscribe.py": 15,
    "tests/e2e/test_abuse.py": 65,
    "tests/e2e/test_api.py": 65,
    "tests/e2e/test_api_drills.py": 55,
    "tests/e2e/test_api_jwt.py": 20,
    "tests/e2e/test_archive_command.py": 30,
    "tests/e2e/test_bridge_processes.py": 30,
    "tests/e2e/test_bridge_trouble.py": 25,
    "tests/e2e/test_clients_mqtt5.py": 15,
    "tests/e2e/test_cluster.py": 40,
    "tests/e2e/test_copied_directory.py": 20,
    "tests/e2e/test_crash_drills.py": 55,
    "tests/e2e/test_cut_logs.py": 30,
    "tests/e2e/test_docs_commands_run.py": 30,
    "tests/e2e/test_doctor.py": 20,
    "tests/e2e/test_drills_disk.py": 35,
    "tests/e2e/test_drills_replicas.py": 15,
    "tests/e2e/test_edges.py": 30,
    "tests/e2e/test_encryption.py": 35,
    "tests/e2e/test_erasure_outbox.py": 25,
    "tests/e2e/test_exit_codes.py": 20,
    "tests/e2e/test_history.py": 20,
    "tests/e2e/test_listeners_mqttjs.py": 15,
    "tests/e2e/test_log_bounds.py": 15,
    "tests/e2e/test_log_faults.py": 160,
    "tests/e2e/test_log_tools.py": 40,
    "tests/e2e/test_monitoring.py": 20,
    "tests/e2e/test_mosquitto_bridges.py": 25,
    "tests/e2e/test_mqtt_bridge_failures.py": 75,
    "tests/e2e/test_mqtt_bridge_in.py": 20,
    "tests/e2e/test_mqtt_bridge_out.py": 75,
    "tests/e2e/test_mqtt_bridge_rings.py": 20,
    "tests/e2e/test_nats_clients.py": 15,
    "tests/e2e/test_operator_changes.py": 20,
    "tests/e2e/test_operator_commands.py": 25,
    "tests/e2e/test_outbox_http.py": 25,
    "tests/e2e/test_outbox_kafka.py": 20,
    "tests/e2e/test_outbox_logs.py": 20,
    "tests/e2e/test_outbox_otlp.py": 20,
    "tests/e2e/test_outbox_postgres.py": 60,
    "tests/e2e/test_outbox_python.py": 15,
    "tests/e2e/test_partitioned_cluster.py": 100,
    "tests/e2e/test_power_cut.py": 55,
    "tests/e2e/test_processes.py": 80,
    "tests/e2e/test_spark_jobs.py": 55,
    "tests/e2e/test_stop_drills.py": 25,
    "tests/e2e/test_suggested_commands.py": 40,
    "tests/e2e/test_top.py": 15,
    "tests/e2e/test_verify.py": 40,
    "tests/e2e/test_web.py": 50,
    "tests/e2e/test_web_access.py": 15,
    "tests/e2e/test_web_browser.py": 60,
    "tests/e2e/test_web_processes.py": 25,
    "tests/eventstore/format/test_records.py": 15,
    "tests/eventstore/log/test_jetstream_log.py": 25,
    "tests/eventstore/server/test_embedded.py": 15,
    "tests/eventstore/test_backup.py": 80,
    "tests/eventstore/test_encryption.py": 45,
    "tests/eventstore/test_salvage.py": 35,
    "tests/outbox/mqtt/test_bridge_sink.py": 25,
    "tests/projections/test_indexing.py": 35,
    "tests/protocol/mqtt/test_decoder.py": 15,
    "tests/simulation/test_answers.py": 25,
    "tests/simulation/test_bridged_partitions.py": 15,
    "tests/simulation/test_chaos.py": 95,
    "tests/simulation/test_erasure.py": 15,
    "tests/simulation/test_log_bounds.py": 15,
    "tests/simulation/test_partition_shares.py": 65,
    "tests/simulation/test_partitioned_nodes.py": 90,
    "tests/simulation/test_partitions.py": 65,
    "tests/simulation/test_random_replays.py": 25,
    "tests/simulation/test_reads_wait_together.py": 25,
    "tests/simulation/test_replay.py": 20,
    "tests/spark/test_archive.py": 75,
    "tests/spark/test_archive_files.py": 20,
    "tests/spark/test_archive_writer.py": 35,
    "tests/spark/test_audit_broker.py": 15,
    "tests/spark/test_audit_mutants.py": 45,
    "tests/spark/test_audit_mutations.py": 15,
    "tests/spark/test_audit_rules.py": 35,
    "tests/spark/test_audit_salvaged.py": 25,
    "tests/spark/test_audit_scale.py": 15,
    "tests/spark/test_audit_several_logs.py": 20,
    "tests/spark/test_log_generator.py": 40,
    "tests/spark/test_reading.py": 15,
    "tests/spark/test_rebuild.py": 20,
    "tests/spark/test_recovery.py": 15,
    "tests/spark/test_report_browser.py": 20,
    "tests/spark/test_report_page.py": 15,
    "tests/spark/test_source.py": 60,
    "tests/spark/test_stats.py": 35,
    "tests/spark/test_streaming.py": 15,
    "tests/test_compiled_modules.py": 75,
    "tests/test_imports.py": 20,
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
