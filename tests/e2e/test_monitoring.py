"""/metrics, /healthz and /readyz of real brokers under real traffic and real trouble."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable

import pytest
from harness import packets as p
from harness.broker import Broker, free_port, stand_still
from harness.fixtures import Clients
from harness.nats import Nats
from harness.waiting import until
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from actors.inspection.status_metrics import METRICS
from e2e.tools import HOSTILE_ID, HOSTILE_TOPIC

PROMTOOL = shutil.which("promtool")
LATENCY = "foldmq_commit_seconds"


class Monitored:
    """A broker and its monitoring port."""

    def __init__(self, make: Callable[[str], Broker], config: str = "") -> None:
        self.port = free_port()
        self.broker = make(f'metrics = "127.0.0.1:{self.port}"\n{config}')
        self.clients = Clients("127.0.0.1", self.broker.port)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ready(self) -> tuple[int, list[str]]:
        status, body = self.get("/readyz")
        found = json.loads(body)
        assert found["ready"] is (status == 200)
        return status, found["reasons"]

    def families(self) -> dict[str, Metric]:
        status, text = self.get("/metrics")
        assert status == 200
        return {family.name: family for family in text_string_to_metric_families(text)}

    def numbers(self) -> dict[str, float]:
        """Every sample, named with its labels as in the text format."""
        return {
            sample.name
            + (
                "{" + ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items())) + "}"
                if sample.labels
                else ""
            ): sample.value
            for family in self.families().values()
            for sample in family.samples
        }


@pytest.fixture
def own(make_broker: Callable[..., Broker], foldmq_only: None) -> Monitored:
    made = Monitored(make_broker)
    made.broker.start()
    return made


def test_every_metric_is_there_and_well_formed(
    make_broker: Callable[..., Broker], foldmq_only: None
) -> None:
    sink = f'[sink.erp]\nkind = "http"\nurl = "http://127.0.0.1:{free_port()}/"\nfilters = ["t"]\n'
    own = Monitored(make_broker, f'nats_listen = "127.0.0.1:{free_port()}"\n{sink}')
    own.broker.start()
    own.clients.connect().publish("t", b"x", 1)
    until(lambda: own.numbers().get("foldmq_log_stream_bytes"), "all metrics")
    families = own.families()
    # Only nodes of a cluster have those of a cluster: see test_cluster.py.
    meters = [meter for meter in METRICS if not meter.name.startswith("foldmq_cluster_")]
    names = {meter.name.removesuffix("_total") for meter in meters}
    assert names == {name for name in families if name.startswith("foldmq_")}
    assert {"process_resident_memory_bytes", "process_open_fds"} <= set(families)
    for meter in meters:
        family = families[meter.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (meter.kind, meter.help)
        if meter.name.startswith("foldmq_certificate_"):
            assert not family.samples  # this broker has no certificate
            continue
        labels = {label for sample in family.samples for label in sample.labels}
        assert labels - {"le"} == set(meter.labels)
        assert family.samples
    histogram = families[LATENCY].samples
    buckets = [sample.value for sample in histogram if sample.name == f"{LATENCY}_bucket"]
    (count,) = [sample.value for sample in histogram if sample.name == f"{LATENCY}_count"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == count > 0


def test_the_text_keeps_the_rules_of_prometheus(own: Monitored) -> None:
    """Those that its linter checks: names, units, help."""
    text = own.get("/metrics")[1]
    helps = re.findall(r"(?m)^# HELP (\S+) (.+)$", text)
    types = dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", text))
    samples = re.findall(r"(?m)^([a-zA-Z_:]\w*)(\{.*\})? \S+$", text)
    assert len(samples) == len([line for line in text.splitlines() if not line.startswith("#")])
    assert len(set(samples)) == len(samples)
    assert [name for name, _ in helps] == list(types)
    for name, kind in types.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name
        assert (kind == "counter") is name.endswith("_total"), name
        assert kind == "histogram" or not name.endswith(("_count", "_sum", "_bucket")), name
        assert not re.search(r"_(ms|milliseconds|minutes|kb|kilobytes|mib|percent)(_|$)", name)
        assert not re.search(r"gauge|counter|histogram|summary", name), name
    assert text.endswith("\n")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_reports_no_problem(own: Monitored) -> None:
    text = own.get("/metrics")[1]
    command = [str(PROMTOOL), "check", "metrics"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_traffic_is_counted(own: Monitored) -> None:
    away = own.clients.connect("away", clean=False)
    away.subscribe(("q", 1))
    away.disconnect()
    reader = own.clients.connect()
    reader.subscribe(("t/#", 2))
    writer = own.clients.connect()
    for qos in (0, 1, 1, 2, 2, 2):
        writer.publish("t/x", b"12345", qos)
        reader.acknowledge(reader.expect_publish("t/x", b"12345", qos))
    writer.publish("q", b"queued", 1)
    writer.publish("q", b"queued", 2)
    writer.publish("kept", b"123", 1, retain=True)
    writer.publish("$SYS/no", b"", 1)
    writer.send(p.publish("half", b"", 2, 77))
    writer.expect(p.Pubrec(77))
    reader.subscribe(("kept", 1))
    reader.expect_publish("kept", b"123", 1, retain=True)  # not acknowledged

    found = own.numbers()
    expected = {
        "foldmq_ready": 1,
        "foldmq_connections": 2,
        "foldmq_connections_accepted_total": 4,  # with the one that looked whether it listens
        "foldmq_connections_refused_total{limit=sessions}": 0,
        "foldmq_sessions{state=connected}": 2,
        "foldmq_sessions{state=offline}": 1,
        "foldmq_subscriptions": 3,
        "foldmq_retained_messages": 1,
        "foldmq_retained_bytes": 3,
        "foldmq_messages_received_total{qos=0}": 1,
        "foldmq_messages_received_total{qos=1}": 5,
        "foldmq_messages_received_total{qos=2}": 5,
        "foldmq_messages_sent_total{qos=0}": 1,
        "foldmq_messages_sent_total{qos=1}": 3,
        "foldmq_messages_sent_total{qos=2}": 3,
        "foldmq_messages_dropped_total{reason=reserved_topic}": 1,
        "foldmq_messages_dropped_total{reason=slow_reader}": 0,
        "foldmq_log_writable": 1,
        "foldmq_log_pending_records": 0,
        "foldmq_gate_bytes": 0,
        "foldmq_actors{type=broker}": 1,
        "foldmq_actors{type=connection}": 2,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found["foldmq_received_bytes_total"] > found["foldmq_publish_received_bytes_total"] > 55
    assert found["foldmq_packets_sent_total"] > 14
    assert found["foldmq_record_events_count"] == found["foldmq_log_records_total"]
    assert found["foldmq_record_events_sum"] == found["foldmq_log_events_total"]
    assert found["foldmq_commit_seconds_sum"] > 0
    assert found["foldmq_log_last_record"] == found["foldmq_log_records_total"]
    assert found["process_resident_memory_bytes"] > 1e7

    census = {
        "foldmq_inflight_messages{stage=received}": 1,
        "foldmq_inflight_messages{stage=releasing}": 0,
        "foldmq_inflight_messages{stage=sent}": 1,
        "foldmq_queued_messages": 2,
        "foldmq_queued_bytes": 12,
    }

    def counted() -> bool:
        found = own.numbers()
        return {name: found.get(name) for name in census} == census

    until(counted, "a census of the sessions")
    until(lambda: own.numbers()["foldmq_loop_lag_seconds_count"], "a look at the loop")


def test_no_name_from_a_client_is_exported(own: Monitored) -> None:
    client = own.clients.connect(HOSTILE_ID, clean=False)
    client.subscribe((HOSTILE_TOPIC, 1))
    client.publish(HOSTILE_TOPIC, b"secret-payload", 1, retain=True)
    text = own.get("/metrics")[1]
    assert "foldmq_retained_messages 1.0" in text
    assert all(line.isprintable() for line in text.splitlines())
    for name in ("evil", "31mil", "secret"):
        assert name not in text


def test_a_log_that_cannot_be_written_makes_it_not_ready_for_so_long(own: Monitored) -> None:
    assert own.ready() == (200, [])
    nats = own.broker.nats_pid
    stand_still(nats)
    try:
        client = own.clients.raw()
        client.send(p.connect("c"))
        until(lambda: own.ready()[0] == 503, "trouble")
        (reason,) = own.ready()[1]
        assert reason.startswith("the log cannot be written: ")
        assert own.get("/healthz")[0] == 200
        found = own.numbers()
        assert (found["foldmq_ready"], found["foldmq_log_writable"]) == (0, 0)
        assert found["foldmq_log_pending_records"] > 0
        assert found["foldmq_gate_bytes"] > 0
    finally:
        os.kill(nats, signal.SIGCONT)
    until(lambda: own.ready() == (200, []), "an end of the trouble")
    found = own.numbers()
    assert (found["foldmq_ready"], found["foldmq_log_pending_records"]) == (1, 0)
    client.expect_a(p.Connack)


def test_a_broker_that_ends_is_alive_and_not_ready(own: Monitored) -> None:
    nats = own.broker.nats_pid
    stand_still(nats)
    own.clients.raw().send(p.connect("c"))
    until(lambda: own.numbers().get("foldmq_log_pending_records"), "an append on its way")
    os.kill(own.broker.pid, signal.SIGTERM)
    try:
        until(lambda: "stopping" in own.ready()[1], "the end")
        assert own.get("/healthz")[0] == 200
        assert "foldmq_ready 0.0" in own.get("/metrics")[1].splitlines()
    finally:
        os.kill(nats, signal.SIGCONT)
    until(lambda: own.broker.returncode is not None, "the end")
    assert own.broker.returncode == 0


def test_it_answers_before_the_log_can_be_read(
    external: Nats, on_external: Callable[..., Broker], foldmq_only: None
) -> None:
    own = Monitored(on_external)
    stand_still(external.pid)
    process = subprocess.Popen(
        own.broker.command(), stderr=subprocess.DEVNULL, env=own.broker.environment()
    )
    try:
        until(lambda: listens(own.port), "the monitoring port")
        assert own.get("/healthz")[0] == 200
        assert own.ready() == (503, ["starting"])
        assert own.numbers()["foldmq_ready"] == 0
        os.kill(external.pid, signal.SIGCONT)
        until(lambda: own.ready() == (200, []), "a broker that is ready")
        assert own.numbers()["foldmq_log_writable"] == 1
    finally:
        process.terminate()
        process.wait(30)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
