"""What `fleet export kubernetes` writes is what a cluster takes, and what this version of ComfyRelay understands."""

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from comfyrelay.autoscaling.kubernetes.export import cluster_fleet, manifests
from comfyrelay.autoscaling.kubernetes.manifests.workers import GPU
from typer.testing import CliRunner

from comfyrelay.autoscaling.kubernetes.pods import FLEET_LABEL, STAGE_LABEL
from comfyrelay.cli.main import app
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.engine import Engine
from comfyrelay.settings import load_settings
from comfyrelay.simulator import Simulator
from comfyrelay.worker.settings import load_worker_settings
from tests.support.entry_points import parse, unknown_variables
from tests.support.paths import ROOT
from tests.support.server_processes import free_port

COMFYUI = "registry.example.com/comfyui:1"
COMMAND = ("fleet", "export", "kubernetes", "gpus", "--stage", "production")
GIVEN = ("--max-pods", "6", "--comfyui-image", COMFYUI)
SCALED_OBJECT = json.loads(Path(__file__).with_name("scaledobject.schema.json").read_text("utf-8"))
# sidecars are there since 1.28, and on without being asked for since 1.29
VERSIONS = ("1.29", kubernetes_validate.latest_version())
SECRETS = {
    "database-url": "postgresql://relay:secret@db/central",
    "tenant-shards": '{"main": "postgresql://relay:secret@db/main"}',
    "fleet-secrets": '{"production": ["0123456789abcdef"]}',
    "signing-secrets": '["0123456789abcdef"]',
    "production": "0123456789abcdef",
}


@cache
def exported(*options: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, [*COMMAND, *GIVEN, *options])
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.stdout))


def found(kind: str, name: str) -> Any:
    [one] = [each for each in exported() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return one


def pod(name: str) -> Any:
    return found("Deployment", name)["spec"]["template"]["spec"]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for each in exported():
        if each["kind"] == "Deployment":
            for one in each["spec"]["template"]["spec"]["containers"]:
                yield each["metadata"]["name"], one


def environment(container: dict[str, Any]) -> dict[str, str]:
    """As the container sees it, with Secrets that an operator would make."""
    values = {}
    for each in container["env"]:
        reference = each.get("valueFrom", {}).get("secretKeyRef")
        if reference is None:
            values[each["name"]] = each.get("value", "comfyrelay-production-gpus-7d4b9")
        elif not reference.get("optional"):
            values[each["name"]] = SECRETS[reference["key"]]
    return values


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid_by_the_published_schemas(version: str) -> None:
    kinds = set()
    for each in exported():
        if each["kind"] != "ScaledObject":
            kubernetes_validate.validate(each, version, strict=True)
            kinds.add(each["kind"])
    assert kinds == {"Deployment", "Service", "PodDisruptionBudget", "ServiceAccount", "Role", "RoleBinding"}


def test_the_scaled_object_has_the_shape_that_keda_asks_for() -> None:
    scaled = found("ScaledObject", "comfyrelay-production-gpus")
    jsonschema.Draft202012Validator(SCALED_OBJECT).validate(scaled)
    assert scaled["spec"]["maxReplicaCount"] == 6
    assert scaled["spec"]["scaleTargetRef"]["name"] == "comfyrelay-production-gpus"
    [trigger] = scaled["spec"]["triggers"]
    assert trigger == {
        "type": "external-push",
        "metadata": {"scalerAddress": "comfyrelay-scaler.comfyrelay:8421", "fleet": "gpus", "stage": "production"},
    }


def test_the_address_of_a_trigger_is_that_of_the_scaler() -> None:
    service = found("Service", "comfyrelay-scaler")
    [port] = service["spec"]["ports"]
    [container] = pod("comfyrelay-scaler")["containers"]
    assert container["args"][-1] == f"0.0.0.0:{port['port']}"
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]


def test_every_selector_finds_its_pods() -> None:
    documents = exported()
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in documents if each["kind"] == "Deployment"]
    selectors = [
        each["spec"]["selector"].get("matchLabels", each["spec"]["selector"])
        for each in documents
        if "selector" in each.get("spec", {})
    ]
    assert [sum(each.items() <= labels.items() for labels in pods) for each in selectors] == [1] * len(selectors)


def test_every_container_runs_a_command_that_there_is_with_variables_that_are_read() -> None:
    assert {parse(each["args"]) for _, each in containers()} == {
        "comfyrelay server",
        "comfyrelay worker",
        "comfyrelay fleet scaler",
    }
    assert [unknown_variables(environment(each)) for _, each in containers()] == [[], [], []]
    with pytest.raises(Exception, match="No such option"):
        parse(["worker", "--no-such-option"])


def test_the_server_and_the_worker_take_the_settings_that_they_are_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    by_name = {each["name"]: environment(each) for _, each in containers()}
    for name, value in {**by_name["server"], **by_name["worker"]}.items():
        monkeypatch.setenv(name, value)
    settings, worker = load_settings(), load_worker_settings()
    assert (settings.host, settings.base_url) == ("0.0.0.0", worker.api_base_url)
    assert (worker.fleet_slug, worker.fleet_stage, worker.max_concurrency) == ("gpus", settings.stage, 1)
    assert worker.fleet_secret in settings.fleet_secrets[worker.fleet_stage]
    assert worker.worker_id == "comfyrelay-production-gpus-7d4b9"
    assert not worker.has_metadata


def test_the_server_is_asked_whether_it_lives_and_whether_it_can_serve() -> None:
    [container] = pod("comfyrelay-server")["containers"]
    probes = {name: container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe", "startupProbe")}
    assert probes == {"livenessProbe": "/healthz", "readinessProbe": "/readyz", "startupProbe": "/healthz"}


def test_no_secret_is_in_a_manifest() -> None:
    secret = {"DATABASE_URL", "FLEET_SECRETS", "FLEET_SECRET", "SIGNING_SECRETS", "SHARDS", "SECRET_ACCESS_KEY"}
    for _, container in containers():
        for each in container["env"]:
            is_secret = any(each["name"].endswith(name) for name in secret)
            assert is_secret <= ("secretKeyRef" in each.get("valueFrom", {})), each["name"]


def test_a_pod_has_longer_to_end_than_its_worker_takes_to_drain() -> None:
    for options in ((), ("--finish-seconds", "3600")):
        [deployment] = [
            each
            for each in exported(*options)
            if (each["kind"], each["metadata"]["name"]) == ("Deployment", "comfyrelay-production-gpus")
        ]
        spec = deployment["spec"]["template"]["spec"]
        [worker] = spec["containers"]
        drain = int(environment(worker)["COMFYRELAY_WORKER_SHUTDOWN_SECONDS"])
        assert spec["terminationGracePeriodSeconds"] >= drain + 20


def test_comfyui_has_the_gpu_and_ends_after_the_worker() -> None:
    [comfyui] = pod("comfyrelay-production-gpus")["initContainers"]
    # a sidecar: it is ended when the other containers have
    assert comfyui["restartPolicy"] == "Always"
    assert comfyui["image"] == COMFYUI
    assert comfyui["resources"]["limits"] == {GPU: 1}


async def test_comfyui_need_not_listen_to_the_network_to_be_asked_whether_it_has_started() -> None:
    [comfyui] = pod("comfyrelay-production-gpus")["initContainers"]
    [python, *words] = comfyui["startupProbe"]["exec"]["command"]
    async with Simulator() as simulator:
        for url, code in ((simulator.url, 0), (f"http://127.0.0.1:{free_port()}", 1)):
            asked = [each.replace("http://127.0.0.1:8188", url) for each in words]
            process = await asyncio.create_subprocess_exec(python, *asked, stderr=asyncio.subprocess.DEVNULL)
            assert await process.wait() == code


def test_a_busy_worker_is_never_the_first_to_end_for_not_being_ready() -> None:
    [worker] = pod("comfyrelay-production-gpus")["containers"]
    assert "readinessProbe" not in worker


def test_to_apply_the_manifests_again_ends_no_worker() -> None:
    assert "replicas" not in found("Deployment", "comfyrelay-production-gpus")["spec"]


def test_nobody_is_root_and_only_the_scaler_may_call_the_cluster() -> None:
    assert pod("comfyrelay-scaler")["serviceAccountName"] == "comfyrelay-scaler"
    for name, container in containers():
        spec = pod(name)
        merged = {**spec["securityContext"], **container["securityContext"]}
        assert (merged["runAsNonRoot"], merged["readOnlyRootFilesystem"]) == (True, True)
        assert spec["automountServiceAccountToken"] is (name == "comfyrelay-scaler")
    [rule] = found("Role", "comfyrelay-scaler")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]}


def test_pods_have_the_labels_by_which_the_scaler_finds_them() -> None:
    labels = found("Deployment", "comfyrelay-production-gpus")["spec"]["template"]["metadata"]["labels"]
    assert (labels[FLEET_LABEL], labels[STAGE_LABEL]) == ("gpus", "production")


def test_each_part_is_a_file_of_its_own(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*COMMAND, *GIVEN, "-o", str(tmp_path / "new")])
    files = sorted((tmp_path / "new").iterdir())
    assert [each.name for each in files] == ["fleet-production-gpus.yaml", "scaler.yaml", "server.yaml"]
    assert sorted(Path(line) for line in done.stdout.splitlines()) == files
    assert sum(len(list(yaml.safe_load_all(each.read_text()))) for each in files) == len(exported())


def fleet(**machines: Any) -> FleetRecord:
    return FleetRecord(
        id=1,
        slug="gpus",
        stage="production",
        name="gpus",
        max_workers=None,
        machines={"provider": "kubernetes", **machines},
        scaling={"max_machines": 4},
        created_at=datetime.now(UTC),
    )


def test_what_a_fleet_says_of_its_machines_counts_unless_something_else_is_given() -> None:
    known = fleet(image=COMFYUI, slots=2, options={"gpus": 2, "node_selector": {"gpu": "l4"}})
    made = cluster_fleet("gpus", Stage.PRODUCTION, known, {"gpus": None})
    assert (made.comfyui_image, made.max_pods, made.slots, made.gpus) == (COMFYUI, 4, 2, 2)
    [deployment, _] = manifests(made)["fleet-production-gpus.yaml"]
    assert deployment["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "l4"}
    assert cluster_fleet("gpus", Stage.PRODUCTION, known, {"gpus": 8}).gpus == 8


@pytest.mark.parametrize(
    ("machines", "said"),
    [
        ({}, "--comfyui-image"),
        ({"image": COMFYUI, "options": {"subnets": []}}, "subnets"),
        ({"image": COMFYUI, "options": {"gpus": "two"}}, "'two'"),
        ({"image": COMFYUI, "options": {"node_selector": {"a": 1}}}, "node_selector"),
    ],
)
def test_a_fleet_that_a_cluster_cannot_run_is_told_why(machines: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        cluster_fleet("gpus", Stage.PRODUCTION, fleet(**machines), {})


@pytest.mark.parametrize("slug", ["GPUs", "a_b", "-a", "a" * 60])
def test_a_slug_that_is_no_name_in_a_cluster_is_refused(slug: str) -> None:
    made = cluster_fleet(slug, Stage.PRODUCTION, None, {"comfyui_image": COMFYUI, "max_pods": 1})
    with pytest.raises(InvalidInput, match=slug):
        manifests(made)


async def test_the_fleet_is_looked_up_where_no_limit_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path))
    async with Engine(load_settings()) as engine:
        await engine.databases.upgrade()
        await engine.fleet.fleets.create(
            slug="gpus", machines={"provider": "kubernetes", "image": COMFYUI}, scaling={"max_machines": 3}
        )
    done = await asyncio.to_thread(CliRunner().invoke, app, [*COMMAND])
    assert done.exit_code == 0, done.output
    [scaled] = [each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "ScaledObject"]
    assert scaled["spec"]["maxReplicaCount"] == 3
    gone = await asyncio.to_thread(CliRunner().invoke, app, ["fleet", "export", "kubernetes", "others"])
    assert isinstance(gone.exception, NotFound)
    async with Engine(load_settings()) as engine:
        await engine.fleet.fleets.create(slug="attic", machines={"provider": "local"})
    other = await asyncio.to_thread(CliRunner().invoke, app, ["fleet", "export", "kubernetes", "attic"])
    assert isinstance(other.exception, InvalidInput)
    assert str(other.exception) == "The fleet attic is of the provider local; this is for kubernetes."


def test_an_image_without_a_registry_is_warned_of() -> None:
    words = ["--max-pods", "2", "--comfyui-image", "example.com/comfyui:1", "--server-image", "example.com/server:1"]
    done = CliRunner().invoke(app, ["fleet", "export", "kubernetes", "gpus", *words])
    [warning] = done.stderr.splitlines()
    assert warning.startswith("Warning: comfyrelay-worker:")


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ["--max-pods", "2", "--comfyui-image", COMFYUI, "--output", str(tmp_path / "file" / "cluster")]
    done = CliRunner().invoke(app, ["fleet", "export", "kubernetes", "gpus", *words])
    assert isinstance(done.exception, InvalidInput)
    assert "Name another --output." in str(done.exception)


def test_the_page_makes_every_secret_that_the_manifests_ask_for() -> None:
    page = (ROOT / "docs" / "howto" / "kubernetes.md").read_text("utf-8")
    references = [
        each["valueFrom"]["secretKeyRef"]
        for _, container in containers()
        for each in container["env"]
        if "secretKeyRef" in each.get("valueFrom", {})
    ]
    assert {each["name"] for each in references} == set(re.findall(r"create secret generic (\S+)", page))
    needed = {each["key"] for each in references if not each.get("optional")}
    assert needed <= set(re.findall(r"--from-literal=([a-z-]+)=", page))
    assert {each["key"] for each in references if each["key"] not in page} == set()


def test_the_commands_of_the_page_are_commands() -> None:
    page = (ROOT / "docs" / "howto" / "kubernetes.md").read_text("utf-8")
    [words] = re.findall(r"^comfyrelay (fleet export .*?)(?=^```)", page.replace("\\\n", " "), re.M | re.S)
    assert parse(words.split()) == "comfyrelay fleet export kubernetes"
