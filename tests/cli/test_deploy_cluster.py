"""The compose file and the chart of a cluster: what they set are settings that a node accepts.

There is no Docker and no Helm here. The chart uses substitutions of values only, so that a few
lines render it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.settings.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy" / "compose.yaml"
CHART = ROOT / "deploy" / "helm" / "foldmq"
_MARK = re.compile(r"\{\{ \.(Values|Release)\.([A-Za-z.]+) \}\}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def settings_of(variables: dict[str, str]) -> Any:
    """The settings of a node with the variables, on the image's."""
    image = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    inherited = dict(re.findall(r"(FOLDMQ_\w+)=(\S+)", image))
    ours = {name: value for name, value in variables.items() if name.startswith("FOLDMQ_")}
    assert ours
    return load_settings({}, {**inherited, **ours})


# ----------------------------------------------------------------- compose


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))
    return found


def test_everything_that_services_refer_to_exists() -> None:
    found = compose()
    assert set(found) - {"services", "secrets", "volumes"} <= {"x-nats", "x-foldmq", "x-settings"}
    for name, service in found["services"].items():
        assert set(service) <= {
            *("image", "build", "command", "environment", "ports", "volumes", "secrets"),
            *("depends_on", "restart", "stop_grace_period"),
        }, name
        assert service["image"]
        assert set(service.get("depends_on", ())) <= set(found["services"])
        assert set(service.get("secrets", ())) <= set(found["secrets"])
        for volume in service["volumes"]:
            assert volume.split(":")[0] in found["volumes"], name
        for port in service.get("ports", ()):
            assert re.fullmatch(r"\d+:\d+", port), name
    services = found["services"].values()
    published = [port.split(":")[0] for one in services for port in one.get("ports", ())]
    assert len(set(published)) == len(published) == 3


def test_the_nodes_of_the_compose_file_form_one_cluster() -> None:
    services = compose()["services"]
    nodes = {name: one for name, one in services.items() if name.startswith("foldmq")}
    found = {name: settings_of(one["environment"]) for name, one in nodes.items()}
    assert len(found) == 3
    for name, settings in found.items():
        assert settings.cluster == "plant"
        assert settings.cluster_advertise.host == name
        assert settings.cluster_advertise.port == settings.cluster_listen.port
        hosts = re.findall(r"nats://(\w+):4222", settings.nats_url)
        assert hosts == [one for one in services if one.startswith("nats")]
        assert nodes[name]["secrets"] == [settings.cluster_key_file.name]
        assert str(settings.cluster_key_file.parent) == "/run/secrets"


def test_the_compose_file_says_how_the_nodes_alone_can_read_the_key() -> None:
    """A secret that is a file keeps its owner and mode."""
    (uid,) = re.findall(r"--uid (\d+)", (ROOT / "Dockerfile").read_text("utf-8"))
    text = COMPOSE.read_text("utf-8")
    assert compose()["secrets"] == {"cluster_key": {"file": "./cluster.key"}}
    assert (
        f"(umask 077; openssl rand -hex 32 > cluster.key) && sudo chown {uid} cluster.key" in text
    )
    assert "chmod" not in text


def test_each_nats_server_knows_the_others() -> None:
    servers = {name: one for name, one in compose()["services"].items() if name.startswith("nats")}
    for name, one in servers.items():
        options = dict(option.lstrip("-").partition("=")[::2] for option in one["command"])
        assert options["name"] == name
        assert re.findall(r"//(\w+):6222", options["routes"]) == list(servers)
        assert "jetstream" in options


# ----------------------------------------------------------------- chart


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    return found


def rendered(**changed: Any) -> list[dict[str, Any]]:
    """The objects of the chart, with its values, some of them changed, and the release "mq"."""

    def value(mark: re.Match[str]) -> str:
        if mark[1] == "Release":
            assert mark[2] == "Name"
            return "mq"
        found: Any = values() | changed
        for name in mark[2].split("."):
            found = found[name]
        assert not isinstance(found, dict | list), mark[0]
        return str(found)

    objects = []
    for file in sorted((CHART / "templates").glob("*.yaml")):
        text = _MARK.sub(value, file.read_text("utf-8"))
        assert "{{ " not in text, f"{file.name} has more than substitutions of values"
        objects += list(yaml.safe_load_all(text))
    return objects


def test_the_chart_has_what_helm_demands() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["apiVersion"] == "v2"
    assert chart["name"] == CHART.name
    for name in ("version", "appVersion"):
        assert re.fullmatch(r"\d+\.\d+\.\d+", chart[name])


def test_every_value_of_the_chart_is_used() -> None:
    text = "".join(file.read_text("utf-8") for file in (CHART / "templates").glob("*.yaml"))
    used = {mark[2].split(".")[0] for mark in _MARK.finditer(text) if mark[1] == "Values"}
    assert used == set(values())


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for one in rendered() if one["kind"] == kind]


def test_the_objects_of_the_chart_fit_together() -> None:
    (workload,) = of_kind("StatefulSet")
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind("Service")}
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"] == labels
    assert services[workload["spec"]["serviceName"]]["clusterIP"] == "None"
    for spec in services.values():
        assert spec["selector"] == labels
    for budget in of_kind("PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"] == labels
    for one in rendered():
        assert _NAME.fullmatch(one["metadata"]["name"])
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert services["mq"]["ports"][0]["targetPort"] in ports
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    pod = workload["spec"]["template"]["spec"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claims = {one["metadata"]["name"] for one in workload["spec"]["volumeClaimTemplates"]}
    assert mounted == claims | {one["name"] for one in pod["volumes"]}


def test_the_settings_of_the_chart_are_settings() -> None:
    (workload,) = of_kind("StatefulSet")
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    advertised = variables["FOLDMQ_CLUSTER_ADVERTISE"].replace("$(POD_NAME)", "mq-0")
    settings = settings_of({**variables, "FOLDMQ_CLUSTER_ADVERTISE": advertised})
    assert settings.cluster_advertise.host == "mq-0.mq-nodes"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {
        "mqtt": settings.listen[0].endpoint.place.port,
        "nodes": settings.cluster_listen.port,
        "metrics": settings.metrics.port,
    }
    assert pod["terminationGracePeriodSeconds"] > settings.commit_timeout
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert str(settings.data_dir) == mounts["data"]
    for file in (settings.cluster_key_file, settings.password_file):
        assert str(file.parent) == mounts["secret"]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_release_may_have_several_logs(partitions: int) -> None:
    objects = rendered(partitions=partitions)
    (workload,) = (one for one in objects if one["kind"] == "StatefulSet")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    advertised = variables["FOLDMQ_CLUSTER_ADVERTISE"].replace("$(POD_NAME)", "mq-0")
    settings = settings_of({**variables, "FOLDMQ_CLUSTER_ADVERTISE": advertised})
    assert settings.partitions == partitions


@pytest.mark.parametrize("name", ["compose.yaml", "helm/foldmq"])
def test_the_manual_names_it(name: str) -> None:
    assert f"deploy/{name}" in (ROOT / "docs" / "cluster.md").read_text("utf-8")
