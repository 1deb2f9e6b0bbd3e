"""Prometheus metrics: queue, leases, outcomes and latencies, without tenant data."""

import asyncio
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from comfyrelay import __version__
from comfyrelay.autoscaling.loop import ScalingLoop
from comfyrelay.autoscaling.providers.base import LaunchRefused, RefusalKind
from comfyrelay.domain.autoscaling.observation import MachineState
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import Fault, ProviderError
from comfyrelay.server.http import metrics
from comfyrelay.services.jobs.submission.requests import JobRequest
from comfyrelay.services.queue.leasing import LeaseRequest
from tests.support.api import Api, problem_of
from tests.support.memory_provider import MemoryProvider
from tests.support.outages import database_down
from tests.support.paths import ROOT
from tests.support.world import GRAPH, OUTPUT, execute

FLEET = "home-clip"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "comfyrelay-fleets.json").read_text("utf-8"))
ALERTS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text("utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
Sample = tuple[str, frozenset[tuple[str, str]]]


async def read_samples(api: Api) -> dict[Sample, float]:
    """Return the current value of every sample."""
    api.engine.operations.metrics._cache.clear()
    api.engine.autoscaling.metrics._cache.clear()
    api.engine.autoscaling.monitor._cache.clear()
    api.context.metrics._cache.clear()
    answer = await api.anonymous.call("GET", "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def at(found: dict[Sample, float], name: str, **labels: str) -> float | None:
    return found.get((f"comfyrelay_{name}", frozenset(labels.items())))


async def user_of(api: Api, email: str = "ada@example.com") -> User:
    user = await api.engine.accounts.tenancy.create_user(email=email)
    await api.engine.accounts.ledger.credit(user.tenant_id, 1000, reference="test")
    return user


async def submit(api: Api, user: User, key: str, **what: Any) -> str:
    request = JobRequest(tenant_id=user.tenant_id, user_id=user.id, idempotency_key=key, **what)
    return (await api.engine.jobs.submit.submit(request)).id


async def lease(api: Api, worker: str = "gpu-1") -> Any:
    [leased] = await api.engine.queue.leasing.lease(LeaseRequest(worker_id=worker, providers=["self_hosted"]))
    return leased


async def test_queue_and_leases_are_measured_by_workflow(api: Api) -> None:
    effect_id, user = await api.effect(), await user_of(api)
    await api.worker()
    await submit(api, user, "one", effect_id=effect_id)
    await api.clock.set(api.clock.now + timedelta(seconds=90))
    await submit(api, user, "two", effect_id=effect_id)
    await submit(api, user, "later", effect_id=effect_id, delay_seconds=1000)
    where = {"workflow": "clip", "stage": "production"}
    found = await read_samples(api)
    assert at(found, "queue_depth", **where) == 2
    assert at(found, "queue_oldest_seconds", **where) == 90
    assert at(found, "leases", **where) is None
    leased = await lease(api)
    found = await read_samples(api)
    assert (at(found, "queue_depth", **where), at(found, "leases", **where)) == (1, 1)
    await api.engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)
    await lease(api)
    found = await read_samples(api)
    assert (at(found, "queue_depth", **where), at(found, "leases", **where)) == (None, 1)


async def test_ended_jobs_are_counted_by_status(api: Api) -> None:
    effect_id, user = await api.effect(), await user_of(api)
    await api.worker()
    assert at(await read_samples(api), "jobs_ended_total", status="completed") == 0
    await submit(api, user, "one", effect_id=effect_id)
    leased = await lease(api)
    for _ in range(2):
        await api.engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)
    await submit(api, user, "two", effect_id=effect_id)
    leased = await lease(api)
    await api.engine.queue.settle.fail(leased.dispatch_id, leased.lease_token, error="it broke")
    await api.engine.queue.control.cancel(user.tenant_id, await submit(api, user, "three", effect_id=effect_id))
    found = await read_samples(api)
    ended = {status: at(found, "jobs_ended_total", status=status) for status in ("completed", "failed", "canceled")}
    assert ended == {"completed": 1, "failed": 1, "canceled": 1}


async def test_metrics_name_no_tenant(api: Api) -> None:
    user = await user_of(api, "private@example.com")
    await api.engine.catalogue.workflows.create(
        slug="my-secret-project", graph={"2": GRAPH["2"]}, tenant_id=user.tenant_id
    )
    job_id = await submit(api, user, "one", workflow_slug="my-secret-project")
    caller = await api.user()
    await caller.call("GET", f"/api/ai-jobs/{job_id}")
    await caller.call("GET", f"/nowhere/{job_id}")
    found = await read_samples(api)
    assert at(found, "queue_depth", workflow="(private)", stage="production") == 1
    for word in ("my-secret-project", job_id, user.tenant_id, user.email):
        assert word not in str(found)


async def test_latencies_are_measured_by_route_template(api: Api) -> None:
    caller = await api.user()
    for number in range(3):
        await caller.call("GET", f"/api/videos/00000000-0000-7000-8000-00000000000{number}")
    await api.anonymous.call("GET", "/api/me")
    await api.anonymous.call("GET", "/not/there")
    found = await read_samples(api)
    count = "request_seconds_count"
    assert at(found, count, method="GET", route="/api/videos/{video_id}", status="404") == 3
    assert at(found, count, method="GET", route="/api/me", status="401") == 1
    assert at(found, count, method="(none)", route="(none)", status="404") == 1


async def test_failed_request_is_counted_as_500(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        raise RuntimeError

    monkeypatch.setattr(api.engine.operations.readiness, "check", check)
    assert (await api.anonymous.call("GET", "/readyz")).status_code == 500
    found = await read_samples(api)
    assert at(found, "request_seconds_count", method="GET", route="/readyz", status="500") == 1


async def test_workflows_blocked_on_several_workers_are_counted(api: Api) -> None:
    effect_id, user = await api.effect(), await user_of(api)
    for worker in ("gpu-1", "gpu-2"):
        await api.worker(worker)
    await submit(api, user, "one", effect_id=effect_id)
    for count, worker in enumerate(("gpu-1", "gpu-2")):
        assert at(await read_samples(api), "workflows_blocked_on_several_workers") == 0, count
        leased = await lease(api, worker)
        await api.engine.queue.settle.fail(
            leased.dispatch_id, leased.lease_token, error="no such model", fault=Fault.WORKER, retry_after_seconds=0
        )
        await api.clock.set(api.clock.now + timedelta(seconds=10))
    assert at(await read_samples(api), "workflows_blocked_on_several_workers") == 1
    await api.clock.set(api.clock.now + timedelta(seconds=3600))
    assert at(await read_samples(api), "workflows_blocked_on_several_workers") == 0


async def test_outbox_age_is_measured(api: Api) -> None:
    shard, central = api.engine.databases.shards["main"], api.engine.databases.central
    found = await read_samples(api)
    assert at(found, "outbox_oldest_seconds", shard="main", direction="to_queue") == 0
    assert at(found, "outbox_oldest_seconds", shard="main", direction="to_shard") == 0
    assert at(found, "webhooks_undelivered", shard="main") == 0
    # dated tomorrow, so that the recovery ignores the row
    for database, columns, values in (
        (shard, "job_ids, created_at", "'[]', relay_now(86400)"),
        (central, "shard, updates, created_at", "'main', '[]', relay_now(86400)"),
    ):
        await execute(database, f"INSERT INTO outbox ({columns}) VALUES ({values})")
    await api.stop_loops()
    await api.clock.set(api.clock.now + timedelta(seconds=86400 + 40))
    found = await read_samples(api)
    assert at(found, "outbox_oldest_seconds", shard="main", direction="to_queue") == 40
    assert at(found, "outbox_oldest_seconds", shard="main", direction="to_shard") == 40


async def test_undelivered_webhooks_are_counted(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delivery to an unknown host is retried."""
    monkeypatch.setattr("comfyrelay.services.webhooks.sender._resolve", Mock(side_effect=OSError))
    effect_id, user = await api.effect(), await user_of(api)
    job_id = await submit(api, user, "one", effect_id=effect_id, webhook_url="https://receiver.test/")
    await api.engine.queue.control.cancel(user.tenant_id, job_id)
    await api.engine.webhooks.deliveries.run_once()
    found = await read_samples(api)
    assert at(found, "webhooks_undelivered", shard="main") == 1
    assert at(found, "webhook_attempts_total", status="pending") == 1


async def test_unreachable_database_is_reported_down(api: Api) -> None:
    await api.stop_loops()
    assert at(await read_samples(api), "database_up", database="central") == 1
    with database_down(api.engine.databases, "central"), database_down(api.engine.databases, "main"):
        found = await read_samples(api)
    assert (at(found, "database_up", database="central"), at(found, "database_up", database="main")) == (0, 0)
    assert at(found, "outbox_oldest_seconds", shard="main", direction="to_queue") is None


async def test_build_process_and_parked_polls_are_exported(api: Api) -> None:
    found = await read_samples(api)
    assert [dict(labels)["version"] for name, labels in found if name == "comfyrelay_build_info"] == [__version__]
    assert ("process_resident_memory_bytes", frozenset()) in found
    assert at(found, "pollers_parked") == 0


async def test_every_metric_is_documented(api: Api) -> None:
    effect_id, user = await api.effect(), await user_of(api)
    await api.worker()
    for key in ("one", "two", "three"):
        await submit(api, user, key, effect_id=effect_id)
    page = (ROOT / "docs" / "howto" / "operate.md").read_text("utf-8")
    leased = await lease(api)
    await api.clock.set(api.clock.now + timedelta(seconds=9))
    await api.engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)
    await api.engine.autoscaling.usage.run_once()
    await lease(api)
    names = {re.sub("_(bucket|count|sum|created)$", "", name) for name, _ in await read_samples(api)}
    ours = {name for name in names if name.startswith("comfyrelay_")}
    assert len(ours) == 13 + 8 + 2 + 2
    assert [our for our in ours if f"| `{our}` |" not in page] == []


async def test_autoscaling_loop_is_measured(api: Api) -> None:
    await api.effect()
    await api.worker()
    fleets, scaling = api.engine.workers.fleets, api.engine.autoscaling
    changes = {"machines": {"provider": "command"}, "autoscaling": {"min_machines": 2, "failed_boots": 1}}
    await fleets.change(stage=Stage.PRODUCTION, slug=FLEET, changes=changes)
    where = {"fleet": FLEET, "stage": "production"}
    assert at(await read_samples(api), "autoscaling_has_leader") == 0

    scaling.leadership.ttl_seconds = 1_000_000.0
    await scaling.leadership.claim()
    provider = MemoryProvider()
    loop = ScalingLoop(api.engine, provider)
    await loop.decide_once()
    await loop.idle()
    provider.fails = ProviderError("It is away.")
    await loop.observe_once()
    found = await read_samples(api)
    assert (at(found, "autoscaling_has_leader"), at(found, "autoscaling_is_leader")) == (1, 1)
    assert at(found, "fleet_desired", **where) == 2
    # One worker registered itself, and one was launched.
    by_state = {state: at(found, "fleet_machines", **where, state=state) for state in MachineState}
    assert by_state == {"booting": 1, "ready": 1, "busy": 0, "draining": 0}
    assert at(found, "fleet_provider_errors_total", **where, call="observe") == 1
    assert at(found, "fleet_is_launching_paused", **where) == 0

    provider.fails = None
    provider.refuses = [LaunchRefused(kind=RefusalKind.QUOTA, text="No more.")]
    await execute(api.engine.databases.central, "UPDATE machines SET ordered_at = relay_now(-1000)")
    for _ in range(2):
        await loop.observe_once()
        await loop.decide_once()
        await loop.idle()
    found = await read_samples(api)
    assert (at(found, "fleet_failed_rounds", **where), at(found, "fleet_is_launching_paused", **where)) == (1, 1)
    await scaling.views.reset_launches(Stage.PRODUCTION, FLEET)
    await loop.decide_once()
    await loop.idle()
    found = await read_samples(api)
    assert at(found, "fleet_is_launching_paused", **where) == 0
    assert at(found, "fleet_launches_refused_total", **where, kind="quota") == 1


async def test_dashboards_and_alerts_use_existing_metrics_and_labels(api: Api) -> None:
    effect_id, user = await api.effect(), await user_of(api)
    await api.worker()
    changes = {"machines": {"provider": "command"}, "autoscaling": {"min_machines": 2}}
    await api.engine.workers.fleets.change(stage=Stage.PRODUCTION, slug=FLEET, changes=changes)
    await submit(api, user, "one", effect_id=effect_id)
    leased = await lease(api)
    await api.clock.set(api.clock.now + timedelta(seconds=9))
    await api.engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)
    await api.engine.autoscaling.usage.run_once()
    api.engine.autoscaling.leadership.ttl_seconds = 1_000_000.0
    await api.engine.autoscaling.leadership.claim()
    provider = MemoryProvider()
    provider.refuses = [LaunchRefused(kind=RefusalKind.QUOTA, text="No more.")]
    loop = ScalingLoop(api.engine, provider)
    await loop.decide_once()
    await loop.idle()
    provider.fails = ProviderError("It is away.")
    await loop.observe_once()
    api.engine.autoscaling.monitor.counts.bursts["production", "cloud"] += 1

    labels: dict[str, set[str]] = {"up": {"job", "instance"}}
    for name, found in await read_samples(api):
        labels.setdefault(name, set()).update(dict(found))
    expressions = [rule["expr"] for rule in RULES]
    expressions += [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert [unknown for expression in expressions for unknown in unknown_names(expression, labels)] == []


def unknown_names(expression: str, labels: Mapping[str, set[str]]) -> list[str]:
    """Return the metrics in an expression that do not exist, and the labels that its metrics do not have."""
    named = set(re.findall(r"\b(?:comfyrelay_\w+|up(?=\{))", expression))
    missing = [name for name in named if name not in labels]
    selectors = re.findall(r"\b(\w+)\{([^}]*)\}", expression)
    missing += [
        f"{name}: {label}"
        for name, inside in selectors
        for label in re.findall(r"(\w+)\s*(?:=|!)", inside)
        if label not in labels.get(name, ())
    ]
    grouped = {label for found in re.findall(r"by \(([^)]*)\)", expression) for label in found.split(", ")}
    known = set().union(*(labels.get(name, ()) for name in named))
    return [*missing, *sorted(grouped - known)]


async def test_metrics_require_the_configured_token(api: Api) -> None:
    api.context.settings = api.context.settings.model_copy(update={"metrics_token": "a-token-of-16-characters"})
    problem_of(await api.anonymous.call("GET", "/metrics"), 401)
    for header in ("Bearer wrong", "a-token-of-16-characters", "Bearer é"):
        headers = {b"Authorization": header.encode()}
        problem_of(await api.anonymous.http.get("/metrics", headers=headers), 401)
    accepted = {"Authorization": "Bearer a-token-of-16-characters"}
    assert (await api.anonymous.http.get("/metrics", headers=accepted)).status_code == 200
    # Probes need no token.
    assert (await api.anonymous.call("GET", "/healthz")).status_code == 200


async def test_metrics_for_other_machines_require_a_token(api: Api) -> None:
    api.context.settings = api.context.settings.model_copy(update={"host": "0.0.0.0"})
    problem = problem_of(await api.anonymous.call("GET", "/metrics"), 401)
    assert "Set COMFYRELAY_METRICS_TOKEN" in problem["detail"]
    token = {"metrics_token": "a-token-of-16-characters"}
    api.context.settings = api.context.settings.model_copy(update=token)
    accepted = {"Authorization": "Bearer a-token-of-16-characters"}
    assert (await api.anonymous.http.get("/metrics", headers=accepted)).status_code == 200


async def test_database_metrics_are_cached(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    cache = api.engine.operations.metrics._cache
    read = cache._read

    async def counted() -> Any:
        reads.append(1)
        return await read()

    monkeypatch.setattr(cache, "_read", counted)
    for _ in range(5):
        api.context.metrics._cache.clear()
        await api.anonymous.call("GET", "/metrics")
    assert len(reads) == 1


async def test_metrics_are_rendered_once_for_concurrent_callers(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    render = Mock(return_value=b"")
    monkeypatch.setattr(metrics, "generate_latest", render)
    await asyncio.gather(*(api.anonymous.call("GET", "/metrics") for _ in range(5)))
    assert render.call_count == 1
