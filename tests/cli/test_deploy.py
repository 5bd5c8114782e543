"""The unit, the image, the dashboard and the alerts match the broker."""

import fnmatch
import importlib.util
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from harness import packets as p
from simulation.world import World, simulate

from actors.inspection.status_metrics import METRICS
from cli.common.units import seconds
from cli.settings.settings import load_settings
from eventstore.errors import CorruptLog
from protocol.errors import FoldmqError

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "foldmq.service"
ALERTS = ROOT / "deploy" / "alerts.yml"
DASHBOARD = ROOT / "docs" / "grafana" / "foldmq.json"
PAGE = ROOT / "docs" / "operations.md"

OF_PROCESS = {
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
}
EXPORTED = {
    *OF_PROCESS,
    *(meter.name for meter in METRICS if meter.kind != "histogram"),
    *(
        meter.name + suffix
        for meter in METRICS
        if meter.kind == "histogram"
        for suffix in ("_bucket", "_count", "_sum")
    ),
}
_NAME = re.compile(r"\b(?:foldmq|process)_[a-z0-9_]+\b")


def labels_of(name: str) -> set[str]:
    """The labels of an exported metric, with those that Prometheus adds."""
    found = {"instance", "job"}
    for meter in METRICS:
        if name == meter.name or (meter.kind == "histogram" and name.startswith(meter.name)):
            found |= {*meter.labels, *({"le"} if name.endswith("_bucket") else ())}
    return found


# ----------------------------------------------------------------- operations.md


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("metrics_table", ROOT / "tools/metrics_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_sys_topic_is_described_and_no_other() -> None:
    told: set[str] = set()

    async def scenario() -> None:
        async with World().running() as world:
            client = await world.connect("c", filters=[("$SYS/#", 0)])
            received = [*client.received, *client.take()]
            told.update(one.topic for one in received if isinstance(one, p.Publish))

    simulate(scenario)
    names = {topic.removeprefix("$SYS/broker/") for topic in told}
    names = {re.sub("/(5|15)min$", "/1min", name) for name in names}
    section = PAGE.read_text("utf-8").split("## `$SYS` topics")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert names == {name for cell in cells for name in re.findall("`([^`]+)`", cell)}


def test_other_names_of_metrics_on_the_page_exist() -> None:
    families = {meter.name for meter in METRICS} | OF_PROCESS
    assert set(_NAME.findall(PAGE.read_text("utf-8"))) <= families


# ----------------------------------------------------------------- Grafana, Prometheus


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return found


def expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    found = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
    return found + [one["expr"] for one in dashboard["annotations"]["list"]]


def alerts() -> list[str]:
    return re.findall(r"(?m)^ +expr: (.+)$", ALERTS.read_text("utf-8"))


def test_every_queried_metric_is_exported_with_its_labels() -> None:
    asked = [*expressions(), *alerts()]
    assert len(asked) > 60
    for expression in asked:
        names = set(_NAME.findall(expression))
        assert names <= EXPORTED, expression
        allowed = set().union(*map(labels_of, names), {"instance", "job"})
        used = set(re.findall(r"(\w+)(?:=~|!=|!~|=)\"", expression))
        for group in re.findall(r"\bby \(([^)]*)\)", expression):
            used |= {label.strip() for label in group.split(",")}
        assert used <= allowed, expression
        assert expression.count("(") == expression.count(")"), expression
        if "_total" in expression or "_bucket" in expression:
            assert re.search(r"\b(rate|increase)\(", expression), expression


def test_every_metric_is_on_the_dashboard() -> None:
    shown = set(_NAME.findall(DASHBOARD.read_text("utf-8")))
    families = {re.sub("_(bucket|count|sum)$", "", name) for name in shown} | shown
    assert {meter.name for meter in METRICS} <= families


def test_the_dashboard_can_be_imported() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    assert dashboard["schemaVersion"] >= 36
    assert re.fullmatch("[a-zA-Z0-9_-]{1,40}", dashboard["uid"])
    assert dashboard["title"]
    assert "id" not in dashboard
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    asked = set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text("utf-8")))
    assert asked - {"__rate_interval"} <= set(variables)
    for panel in panels():
        if panel["type"] == "row":
            continue
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["title"]
        assert panel["description"]
        ids = [target["refId"] for target in panel["targets"]]
        assert ids
        assert len(set(ids)) == len(ids)


def test_panels_have_numbers_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = set(
            itertools.product(
                range(place["x"], place["x"] + place["w"]),
                range(place["y"], place["y"] + place["h"]),
            )
        )
        assert cells
        assert not cells & taken, panel["title"]
        taken |= cells


def test_each_alert_says_what_to_do() -> None:
    text = ALERTS.read_text("utf-8")
    assert text.count("alert: ") == text.count(" summary: ") == text.count(" description: ") > 10


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_alerts() -> None:
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True, capture_output=True)


# ----------------------------------------------------------------- systemd


def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text("utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_fits_the_broker() -> None:
    found = unit()
    assert found["Type"] == ["notify"]
    variables = dict(line.split("=", 1) for line in found["Environment"])
    settings = load_settings({}, {"FOLDMQ_LISTEN": "127.0.0.1:1883", **variables})
    directories = [f"/var/lib/{name}" for name in found["StateDirectory"][0].split()]
    # Keys of personal topics are in a directory of their own, which backups leave out.
    assert directories == [str(settings.data_dir), "/var/lib/foldmq-keys"]
    (start,) = found["ExecStart"]
    assert start.split()[1:] == ["serve", "--config", "/etc/foldmq/foldmq.toml"]
    # The broker is given the time that draining may take, and ends its NATS server itself.
    stop = seconds(found["TimeoutStopSec"][0])
    assert isinstance(stop, float)
    assert stop > settings.commit_timeout
    assert found["KillMode"] == ["mixed"]
    assert found["Restart"] == ["on-failure"]
    never_better = {CorruptLog.exit_code, load_error_code()}
    assert {int(code) for code in found["RestartPreventExitStatus"][0].split()} == never_better


def load_error_code() -> int:
    with pytest.raises(FoldmqError) as caught:
        load_settings({"keep": "x"}, {})
    return caught.value.exit_code


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    (command,) = unit()["ExecStart"]
    program = command.split()[0]
    copy.write_text(UNIT.read_text("utf-8").replace(program, sys.executable), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "foldmq" in line]
    assert ours == []
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unrecognized option" in rated.stderr:
        pytest.skip("this systemd cannot rate a unit that is not installed")
    assert rated.returncode == 0, rated.stdout[-300:]


# ----------------------------------------------------------------- Docker


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, lines joined, without comments."""
    lines = [line for line in (ROOT / "Dockerfile").read_text("utf-8").splitlines() if line]
    text = "\n".join(line for line in lines if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", "", text)
    found = [line.split(maxsplit=1) for line in joined.splitlines()]
    return [(name, rest) for name, rest in found]


def last(name: str) -> str:
    return [rest for one, rest in instructions() if one == name][-1]


def image_environment() -> dict[str, str]:
    return dict(word.split("=", 1) for word in last("ENV").split())


def test_the_image_runs_as_an_unprivileged_user_and_gets_signals() -> None:
    names = [name for name, _ in instructions()]
    stages = [rest for name, rest in instructions() if name == "FROM"]
    assert stages == ["debian:13-slim AS build", "debian:13-slim AS root", "scratch"]
    assert last("USER") not in ("root", "0")
    assert names.index("USER") > len(names) - 1 - names[::-1].index("FROM")
    assert json.loads(last("ENTRYPOINT")) + json.loads(last("CMD")) == ["foldmq", "serve"]
    chart = (ROOT / "deploy/helm/foldmq/templates/statefulset.yaml").read_text("utf-8")
    assert "readOnlyRootFilesystem: true" in chart
    assert "STOPSIGNAL SIGTERM" in (ROOT / "Dockerfile").read_text("utf-8")


def test_the_settings_of_the_image_are_settings() -> None:
    variables = {k: v for k, v in image_environment().items() if k.startswith("FOLDMQ_")}
    with pytest.raises(FoldmqError, match="set password_file"):
        load_settings({}, variables)
    settings = load_settings({}, {**variables, "FOLDMQ_PASSWORD_FILE": "/etc/foldmq/users"})
    assert str(settings.data_dir) == last("VOLUME") == "/data"
    assert settings.metrics is not None
    assert settings.web is not None
    places = [one.endpoint.place for one in settings.listen]
    ports = {*(place.port for place in places if place), settings.metrics.port, settings.web.port}
    assert ports == set(map(int, last("EXPOSE").split()))
    assert not settings.metrics.loopback


def test_only_installed_files_are_copied() -> None:
    copied = [
        source
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    installed = project["tool"]["setuptools"]
    packages = {package.split(".")[0] for package in installed["packages"]}
    files = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    files |= {f"{module}.py" for module in installed["py-modules"]}
    compiling = {"setup.py", "tools/mypyc.ini"}
    assert set(copied) == packages | files | compiling
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    for path in [*copied, "tests", ".git", "docs", "foldmq-data", ".venv", "bench"]:
        ignored = False
        for rule in rules:
            if fnmatch.fnmatch(path, rule.removeprefix("!")):
                ignored = not rule.startswith("!")
        assert ignored is (path not in copied), path
    assert "**/__pycache__" in rules


def test_every_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    named = set(project["tool"]["setuptools"]["packages"])
    roots = {package.split(".")[0] for package in named}
    there = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for root in roots
        for file in (ROOT / root).rglob("*.py")
    }
    assert there == named


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert self.path == "/readyz"
        status: int = self.server.status  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b'{"reasons": ["why"]}')

    def log_message(self, *_: object) -> None:
        pass


def check_health(port: int) -> subprocess.CompletedProcess[str]:
    options, _, command = last("HEALTHCHECK").partition("CMD ")
    assert "--interval" in options
    program, *arguments = json.loads(command)
    assert program == "python"
    # 0.0.0.0 as in the image; the port is one that is free here.
    env = {**os.environ, "FOLDMQ_METRICS": f"0.0.0.0:{port}"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("status", "code", "said"), [(200, 0, ""), (503, 1, '["why"]')])
def test_the_health_check_of_the_image_requests_readyz(
    status: int, code: int, said: str, request: pytest.FixtureRequest
) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Health)
    server.status = status  # type: ignore[attr-defined]
    Thread(target=server.serve_forever, daemon=True).start()
    request.addfinalizer(server.server_close)
    request.addfinalizer(server.shutdown)
    done = check_health(server.server_port)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_health_check_fails_without_an_answer() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = check_health(free.getsockname()[1])
    assert done.returncode == 1
    assert "refused" in done.stderr
    assert "Traceback" not in done.stderr
