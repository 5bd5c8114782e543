"""The compose file and the chart of a cluster: linters accept them, and a node their settings.

Docker and Kubernetes are not needed: Helm renders the chart, and schemas check what it renders.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cli.settings.log_settings import MAX_PARTITIONS
from cli.settings.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy" / "compose.yaml"
CHART = ROOT / "deploy" / "helm" / "foldmq"
RECIPE = ROOT / "deploy" / "recipes" / "kubernetes" / "values.yaml"
SCHEMA = CHART / "values.schema.json"
KUBERNETES = ("1.25", "1.37")
"""The oldest and the newest version whose schemas are installed."""
YAML_RULES = "{extends: relaxed, rules: {line-length: {max: 120}}}"
_VALUE = re.compile(r"\{\{ \.Values\.([A-Za-z]+)[^}]*\}\}")
_SCRIPTS = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
_HELM = shutil.which("helm", path=_SCRIPTS)


def settings_of(variables: dict[str, str]) -> Any:
    """The settings of a node with the variables, on the image's."""
    image = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    inherited = dict(re.findall(r"(FOLDMQ_\w+)=(\S+)", image))
    ours = {name: value for name, value in variables.items() if name.startswith("FOLDMQ_")}
    assert ours
    return load_settings({}, {**inherited, **ours})


def output(*command: str) -> str:
    """What a command prints; it fails unless the command succeeds."""
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def installed(name: str) -> str:
    """The path of a command that a requirement of the tests installs."""
    found = shutil.which(name, path=_SCRIPTS)
    assert found, f"{name} is not installed"
    return found


@pytest.mark.system
def test_a_linter_accepts_the_yaml_files() -> None:
    files = [COMPOSE, ROOT / "deploy" / "alerts.yml", *CHART.glob("*.yaml")]
    output(installed("yamllint"), "--strict", "-d", YAML_RULES, *map(str, files))


# ----------------------------------------------------------------- compose


@pytest.mark.system
def test_the_compose_file_follows_the_specification() -> None:
    output(installed("check-jsonschema"), "--builtin-schema=vendor.compose-spec", str(COMPOSE))


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))
    return found


def test_everything_that_services_refer_to_exists() -> None:
    found = compose()
    assert set(found) - {"services", "secrets", "volumes"} <= {"x-nats", "x-foldmq", "x-settings"}
    for name, service in found["services"].items():
        assert set(service) <= {
            *("image", "build", "command", "environment", "ports", "volumes", "secrets"),
            *("depends_on", "read_only", "restart", "stop_grace_period"),
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

needs_helm = pytest.mark.skipif(
    _HELM is None and (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="there is no helm, and helm-binary is a package for Linux on x86-64 only",
)


def recipe() -> dict[str, Any]:
    """The values of the recipe, each with its path."""
    found: dict[str, Any] = yaml.safe_load(RECIPE.read_text("utf-8"))
    service = found.pop("service")
    return {**found, **{f"service.{name}": value for name, value in service.items()}}


RELEASES: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "several logs": {"partitions": 3},
    "five nodes": {"replicas": 5},
    "inside Kubernetes only": {"service.type": "ClusterIP"},
    "at a port of each machine": {"service.type": "NodePort", "service.port": 8883},
    "several NATS servers": {"natsUrl": "nats://n-0.n:4222,nats://n-1.n:4222"},
    "an image in a registry": {"image": "registry.example.com:5000/foldmq:0.1.0"},
    "names like numbers and booleans": {"cluster": "007", "secretName": "true"},
    "the recipe": recipe(),
    "more of everything": {"cpu": 2, "memory": "8Gi", "storage": "1000G"},
}
"""Values of releases, each with the path of a value."""


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    return found


def helm(*arguments: str, **changed: Any) -> str:
    """The output of a helm command, with these values of the chart changed."""
    assert _HELM is not None, "helm-binary is not installed"
    changes = [f"--set-json={path}={json.dumps(value)}" for path, value in changed.items()]
    return output(_HELM, *arguments, str(CHART), *changes)


@cache
def _rendered(name: str, changes: str) -> str:
    return helm("template", name, **json.loads(changes))


def rendered(name: str = "mq", **changed: Any) -> list[dict[str, Any]]:
    """The objects of a release with this name."""
    text = _rendered(name, json.dumps(changed))
    return [one for one in yaml.safe_load_all(text) if one is not None]


@pytest.mark.system
@needs_helm
@pytest.mark.parametrize("release", RELEASES)
def test_helm_and_kubernetes_accept_the_chart(release: str) -> None:
    helm("lint", "--strict", **RELEASES[release])
    objects = rendered(**RELEASES[release])
    assert len(objects) == 4
    for one in objects:
        for version in KUBERNETES:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.system
@needs_helm
@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"partitions": 33}, "partitions"),
        ({"partitions": "two"}, "partitions"),
        ({"cluster": "a plant"}, "cluster"),
        ({"replicas": 0}, "replicas"),
        ({"service.type": "Loadbalancer"}, "service.type"),
        ({"service.port": 70000}, "service.port"),
        ({"natsURL": "nats://nats:4222"}, "natsURL"),
    ],
)
def test_helm_refuses_a_value_that_the_chart_cannot_use(
    changed: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        rendered(**changed)


def test_the_chart_has_the_version_of_foldmq() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert chart["appVersion"] == project["version"]
    assert values()["image"] == f"foldmq:{project['version']}"
    assert chart["name"] == CHART.name


def test_every_value_of_the_chart_is_used_and_checked() -> None:
    text = "".join(file.read_text("utf-8") for file in (CHART / "templates").glob("*.yaml"))
    assert set(_VALUE.findall(text)) == set(values())
    schema = json.loads(SCHEMA.read_text("utf-8"))
    assert set(schema["properties"]) - {"global"} == set(schema["required"]) == set(values())
    assert schema["properties"]["partitions"]["maximum"] == MAX_PARTITIONS


def of_kind(kind: str, **changed: Any) -> list[dict[str, Any]]:
    return [one for one in rendered(**changed) if one["kind"] == kind]


@pytest.mark.system
@needs_helm
@pytest.mark.parametrize("name", ["mq", "a" * 53])  # which is the longest that Helm accepts
def test_the_objects_of_the_chart_fit_together(name: str) -> None:
    (workload,) = of_kind("StatefulSet", name=name)
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind("Service", name=name)}
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"] == labels
    assert services[workload["spec"]["serviceName"]]["clusterIP"] == "None"
    for spec in services.values():
        assert spec["selector"] == labels
    for budget in of_kind("PodDisruptionBudget", name=name):
        assert budget["spec"]["selector"]["matchLabels"] == labels
    for one in rendered(name):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", one["metadata"]["name"])
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert services[name]["ports"][0]["targetPort"] in ports
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    pod = workload["spec"]["template"]["spec"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claims = {one["metadata"]["name"] for one in workload["spec"]["volumeClaimTemplates"]}
    assert mounted == claims | {one["name"] for one in pod["volumes"]}


def pod_of(**changed: Any) -> tuple[dict[str, Any], Any]:
    """A pod of the release "mq", and the settings of its node."""
    (workload,) = of_kind("StatefulSet", **changed)
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    advertised = variables["FOLDMQ_CLUSTER_ADVERTISE"].replace("$(POD_NAME)", "mq-0")
    return pod, settings_of({**variables, "FOLDMQ_CLUSTER_ADVERTISE": advertised})


@pytest.mark.system
@needs_helm
def test_the_settings_of_the_chart_are_settings() -> None:
    pod, settings = pod_of()
    (container,) = pod["containers"]
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


@pytest.mark.system
@needs_helm
@pytest.mark.parametrize("release", RELEASES)
def test_the_values_of_a_release_are_those_of_its_nodes(release: str) -> None:
    changed = RELEASES[release]
    wanted = {**values(), **changed}
    pod, settings = pod_of(**changed)
    assert settings.partitions == wanted["partitions"]
    assert settings.cluster == wanted["cluster"]
    assert settings.nats_url == wanted["natsUrl"]
    (container,) = pod["containers"]
    assert container["image"] == wanted["image"]
    assert container["resources"]["requests"] == {
        "cpu": str(wanted["cpu"]), "memory": wanted["memory"],
    }  # fmt: skip
    (volume,) = pod["volumes"]
    assert volume["secret"]["secretName"] == wanted["secretName"]
    (workload,) = of_kind("StatefulSet", **changed)
    assert workload["spec"]["replicas"] == wanted["replicas"]
    (clients,) = (one for one in of_kind("Service", **changed) if one["metadata"]["name"] == "mq")
    assert clients["spec"]["type"] == changed.get("service.type", "LoadBalancer")
    assert clients["spec"]["ports"][0]["port"] == changed.get("service.port", 1883)


@pytest.mark.parametrize("name", ["compose.yaml", "helm/foldmq"])
def test_the_manual_names_it(name: str) -> None:
    assert f"deploy/{name}" in (ROOT / "docs" / "cluster.md").read_text("utf-8")
