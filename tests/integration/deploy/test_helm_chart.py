"""The Helm chart renders valid manifests with commands, variables and secrets that exist."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from packaging.version import Version

from comfyrelay import __version__
from comfyrelay.autoscaling.kubernetes.pods import FLEET_LABEL, STAGE_LABEL
from comfyrelay.settings import load_settings
from comfyrelay.simulator import Simulator
from comfyrelay.worker.settings import load_worker_settings
from tests.support.entry_points import parse, unknown_variables
from tests.support.paths import ROOT
from tests.support.programs import output_of, program
from tests.support.server_processes import free_port

CHART = ROOT / "deploy" / "helm" / "comfyrelay"
PAGE = ROOT / "docs" / "howto" / "kubernetes.md"
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCALED_OBJECT = json.loads(Path(__file__).with_name("scaledobject.schema.json").read_text("utf-8"))
# Sidecars are on by default since 1.29.
VERSIONS = ("1.29", kubernetes_validate.latest_version())
COMFYUI = "registry.example.com/comfyui:1"
FLEET = {"slug": "gpus", "maxReplicas": 6, "comfyuiImage": COMFYUI}
WORKERS = "comfyrelay-production-gpus"
SECRETS = {
    "database-url": "postgresql://relay:secret@db/central",
    "shards": '{"main": "postgresql://relay:secret@db/main"}',
    "fleet-secrets": '{"production": ["0123456789abcdef"]}',
    "signing-secrets": '["0123456789abcdef"]',
    "production": "0123456789abcdef",
}


def helm_template(values: str) -> subprocess.CompletedProcess[str]:
    command = [program("helm"), "template", "comfyrelay", str(CHART), "--namespace", "relay", "--values", "-"]
    return subprocess.run(command, input=values, capture_output=True, text=True, check=False)


@cache
def _render(values: str) -> list[dict[str, Any]]:
    done = helm_template(values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document is not None]


def render(fleet: dict[str, Any] | None = None, **values: Any) -> list[dict[str, Any]]:
    return _render(json.dumps({"fleets": [{**FLEET, **(fleet or {})}], **values}))


def find(documents: list[dict[str, Any]], kind: str, name: str) -> Any:
    [document] = [
        document for document in documents if (document["kind"], document["metadata"]["name"]) == (kind, name)
    ]
    return document


def pod_spec(name: str, documents: list[dict[str, Any]] | None = None) -> Any:
    return find(documents or render(), "Deployment", name)["spec"]["template"]["spec"]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for document in render():
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                yield document["metadata"]["name"], container


def environment(container: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a container, with values for the required secrets."""
    values = {}
    for variable in container["env"]:
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        if reference is None:
            values[variable["name"]] = variable.get("value", f"{WORKERS}-7d4b9")
        elif not reference.get("optional"):
            values[variable["name"]] = SECRETS[reference["key"]]
    return values


def test_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    release = Version(__version__).base_version
    assert (chart["version"], chart["appVersion"]) == (release, release)


def test_default_values_match_the_schema_key_by_key() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(DEFAULTS)
    assert set(SCHEMA["properties"]) - {"global"} == set(DEFAULTS)
    for name in ("secrets", "server", "migration", "keda", "networkPolicy", "scaler"):
        assert set(SCHEMA["properties"][name]["properties"]) == set(DEFAULTS[name])
    assert set(SCHEMA["definitions"]["workers"]["properties"]) - {"slug"} == set(DEFAULTS["workers"])


@pytest.mark.parametrize(
    "fleet",
    [
        *({"slug": slug} for slug in ("GPUs", "a_b", "-a", "a" * 64)),
        {},
        {"slug": "gpus", "subnets": []},
        {"slug": "gpus", "gpus": "two"},
        {"slug": "gpus", "nodeSelector": {"a": 1}},
    ],
)
def test_schema_refuses_invalid_fleets(fleet: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(SCHEMA).validate({**DEFAULTS, "fleets": [fleet]})


def test_values_in_the_documentation_match_the_schema() -> None:
    [values] = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    jsonschema.Draft7Validator(SCHEMA).validate({**DEFAULTS, **yaml.safe_load(values)})


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_match_the_published_schemas(version: str) -> None:
    values = {"imagePullSecrets": [{"name": "registry"}]}
    documents = render({"modelsClaim": "models", "comfyuiResources": {"limits": {"memory": "32Gi"}}}, **values)
    kinds = set()
    for document in documents:
        if document["kind"] != "ScaledObject":
            kubernetes_validate.validate(document, version, strict=True)
            kinds.add(document["kind"])
    policies = {"PodDisruptionBudget", "NetworkPolicy"}
    assert kinds == {"Deployment", "Service", "ServiceAccount", "Role", "RoleBinding", "Job"} | policies


def test_scaled_object_matches_the_schema_of_keda() -> None:
    scaled = find(render(), "ScaledObject", WORKERS)
    jsonschema.Draft202012Validator(SCALED_OBJECT).validate(scaled)
    assert scaled["spec"]["maxReplicaCount"] == 6
    assert scaled["spec"]["scaleTargetRef"]["name"] == WORKERS
    [trigger] = scaled["spec"]["triggers"]
    assert trigger == {
        "type": "external-push",
        "metadata": {"scalerAddress": "comfyrelay-scaler.relay:8421", "fleet": "gpus", "stage": "production"},
    }


def test_scaler_listens_on_the_port_of_its_service() -> None:
    [port] = find(render(), "Service", "comfyrelay-scaler")["spec"]["ports"]
    [container] = pod_spec("comfyrelay-scaler")["containers"]
    assert container["args"][-1] == f"0.0.0.0:{port['port']}"
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]


def test_number_of_workers_is_fixed_without_keda() -> None:
    documents = render({"replicas": 3}, keda={"enabled": False})
    assert find(documents, "Deployment", WORKERS)["spec"]["replicas"] == 3
    names = {document["metadata"]["name"] for document in documents}
    assert names == {"comfyrelay-server", "comfyrelay-migration", "comfyrelay-workers", WORKERS}


def test_upgrade_with_keda_keeps_the_number_of_workers() -> None:
    assert "replicas" not in find(render(), "Deployment", WORKERS)["spec"]


def test_values_of_fleets_override_the_defaults_even_if_zero_or_empty() -> None:
    documents = render(
        {"gpus": 0, "nodeSelector": {"gpu": "l4"}, "tolerations": []}, workers={"gpus": 2, "slots": 4, "replicas": 1}
    )
    spec = pod_spec(WORKERS, documents)
    assert spec["initContainers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 0}
    assert (spec["nodeSelector"], spec.get("tolerations")) == ({"gpu": "l4"}, None)
    assert environment(spec["containers"][0])["MAX_CONCURRENCY"] == "4"


@pytest.mark.parametrize(
    ("fleet", "text"),
    [({"slug": "a" * 40}, "use a shorter slug"), ({"comfyuiImage": ""}, "Set workers.comfyuiImage")],
)
def test_fleet_that_cannot_be_deployed_is_refused_with_a_reason(fleet: dict[str, Any], text: str) -> None:
    refused = helm_template(json.dumps({"fleets": [{**FLEET, **fleet}]}))
    assert refused.returncode != 0
    assert text in refused.stderr


def test_every_selector_matches_one_deployment() -> None:
    documents = render()
    pods = [
        document["spec"]["template"]["metadata"]["labels"] for document in documents if document["kind"] == "Deployment"
    ]
    selectors = [
        document["spec"]["selector"].get("matchLabels", document["spec"]["selector"])
        for document in documents
        if "selector" in document.get("spec", {})
    ]
    assert [sum(selector.items() <= labels.items() for labels in pods) for selector in selectors] == [1] * len(
        selectors
    )


def test_containers_run_existing_commands_with_known_variables() -> None:
    assert {parse(container["args"]) for _, container in containers()} == {
        "comfyrelay server",
        "comfyrelay worker",
        "comfyrelay fleet scaler",
    }
    assert [unknown_variables(environment(container)) for _, container in containers()] == [[], [], []]


def test_migrations_run_once_before_each_upgrade_with_the_databases_of_the_server() -> None:
    job = find(render(), "Job", "comfyrelay-migration")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    [migration] = job["spec"]["template"]["spec"]["containers"]
    assert parse(migration["args"]) == "comfyrelay db upgrade"
    # Without this option, PostgreSQL is not upgraded.
    assert "--no-backup" in migration["args"]
    [server] = pod_spec("comfyrelay-server")["containers"]
    databases = {"COMFYRELAY_DATABASE_URL", "COMFYRELAY_SHARDS"}
    assert migration["image"] == server["image"]
    assert environment(migration).items() >= {(name, environment(server)[name]) for name in databases}
    assert "Job" not in {document["kind"] for document in render(migration={"enabled": False})}


def test_only_keda_reaches_the_scaler_and_only_metrics_are_reachable_on_workers() -> None:
    documents = render(networkPolicy={"enabled": True, "kedaNamespace": "keda-system"})
    [rule] = find(documents, "NetworkPolicy", "comfyrelay-scaler")["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda-system"}}}]
    [scaler] = pod_spec("comfyrelay-scaler", documents)["containers"]
    assert [port["port"] for port in rule["ports"]] == [port["name"] for port in scaler["ports"]]
    [rule] = find(documents, "NetworkPolicy", "comfyrelay-workers")["spec"]["ingress"]
    assert rule == {"ports": [{"port": "metrics"}]}
    for name, deployment in (("comfyrelay-scaler", "comfyrelay-scaler"), ("comfyrelay-workers", WORKERS)):
        chosen = find(documents, "NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"]
        labels = find(documents, "Deployment", deployment)["spec"]["template"]["metadata"]["labels"]
        assert chosen.items() <= labels.items()
    without = {document["kind"] for document in render(networkPolicy={"enabled": False})}
    assert "NetworkPolicy" not in without


def test_chart_passes_lint() -> None:
    output_of(program("helm"), "lint", "--strict", str(CHART))


def test_server_and_worker_load_their_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    by_name = {container["name"]: environment(container) for _, container in containers()}
    for name, value in {**by_name["server"], **by_name["worker"]}.items():
        monkeypatch.setenv(name, value)
    settings, worker = load_settings(), load_worker_settings()
    assert (settings.host, settings.base_url) == ("0.0.0.0", worker.api_base_url)
    assert (worker.fleet_slug, worker.fleet_stage, worker.max_concurrency) == ("gpus", settings.stage, 1)
    assert worker.fleet_secret in settings.fleet_secrets[worker.fleet_stage]
    assert worker.worker_id == f"{WORKERS}-7d4b9"
    assert not worker.has_metadata


def test_server_has_liveness_and_readiness_probes() -> None:
    [container] = pod_spec("comfyrelay-server")["containers"]
    probes = {name: container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe", "startupProbe")}
    assert probes == {"livenessProbe": "/healthz", "readinessProbe": "/readyz", "startupProbe": "/healthz"}


def test_secrets_are_references() -> None:
    secret = {"DATABASE_URL", "FLEET_SECRETS", "FLEET_SECRET", "SIGNING_SECRETS", "SHARDS", "SECRET_ACCESS_KEY"}
    for _, container in containers():
        for variable in container["env"]:
            is_secret = any(variable["name"].endswith(name) for name in secret)
            assert is_secret <= ("secretKeyRef" in variable.get("valueFrom", {})), variable["name"]


@pytest.mark.parametrize("shutdown_seconds", [570, 3600])
def test_pod_has_more_time_to_stop_than_its_worker(shutdown_seconds: int) -> None:
    spec = pod_spec(WORKERS, render({"shutdownSeconds": shutdown_seconds}))
    [worker] = spec["containers"]
    assert environment(worker)["COMFYRELAY_WORKER_SHUTDOWN_SECONDS"] == str(shutdown_seconds)
    assert spec["terminationGracePeriodSeconds"] == shutdown_seconds + 30


def test_comfyui_has_the_gpu_and_stops_after_the_worker() -> None:
    [comfyui] = pod_spec(WORKERS)["initContainers"]
    # A sidecar stops after the other containers.
    assert (comfyui["image"], comfyui["restartPolicy"]) == (COMFYUI, "Always")
    assert comfyui["resources"]["limits"] == {"nvidia.com/gpu": 1}


async def test_startup_probe_of_comfyui_runs_inside_its_container() -> None:
    [comfyui] = pod_spec(WORKERS)["initContainers"]
    [python, *arguments] = comfyui["startupProbe"]["exec"]["command"]
    async with Simulator() as simulator:
        for url, code in ((simulator.url, 0), (f"http://127.0.0.1:{free_port()}", 1)):
            command = [argument.replace("http://127.0.0.1:8188", url) for argument in arguments]
            process = await asyncio.create_subprocess_exec(python, *command, stderr=asyncio.subprocess.DEVNULL)
            assert await process.wait() == code


def test_workers_have_no_readiness_probe() -> None:
    """Kubernetes deletes unready pods first, so a busy worker could be deleted before an idle one."""
    [worker] = pod_spec(WORKERS)["containers"]
    assert "readinessProbe" not in worker


def test_containers_are_not_root_and_only_the_scaler_has_a_token() -> None:
    assert pod_spec("comfyrelay-scaler")["serviceAccountName"] == "comfyrelay-scaler"
    for name, container in containers():
        spec = pod_spec(name)
        merged = {**spec["securityContext"], **container["securityContext"]}
        assert (merged["runAsNonRoot"], merged["readOnlyRootFilesystem"]) == (True, True)
        assert spec["automountServiceAccountToken"] is (name == "comfyrelay-scaler")
    [rule] = find(render(), "Role", "comfyrelay-scaler")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]}


def test_worker_pods_have_the_labels_of_the_scaler() -> None:
    labels = find(render(), "Deployment", WORKERS)["spec"]["template"]["metadata"]["labels"]
    assert (labels[FLEET_LABEL], labels[STAGE_LABEL]) == ("gpus", "production")


def test_documentation_creates_every_secret() -> None:
    page = PAGE.read_text("utf-8")
    references = [
        variable["valueFrom"]["secretKeyRef"]
        for _, container in containers()
        for variable in container["env"]
        if "secretKeyRef" in variable.get("valueFrom", {})
    ]
    assert {reference["name"] for reference in references} == set(re.findall(r"create secret generic (\S+)", page))
    required = {reference["key"] for reference in references if not reference.get("optional")}
    assert required <= set(re.findall(r"--from-literal=([a-z-]+)=", page))
    assert {reference["key"] for reference in references if reference["key"] not in page} == set()
