"""Machine time and cost, as administrators see them."""

from datetime import timedelta

import pytest

from comfyrelay.cli.fleet.metrics import cost_text
from comfyrelay.services.jobs.submission.requests import JobRequest
from comfyrelay.services.queue.leasing import LeaseRequest
from tests.support.api import Api, problem_of
from tests.support.world import OUTPUT

PRICED = {"instance_types": [{"name": "g5.xlarge", "price_per_hour": 3.6}]}


async def finish(api: Api, seconds: float) -> tuple[int, str]:
    """Finish a job that ran this long on a machine that costs 0.001 a second; return its dispatch and tenant."""
    effect_id = await api.effect()
    admin = await api.user("root@example.com", is_admin=True)
    assert (await admin.call("PATCH", "/api/admin/fleets/production/home-clip", {"machines": PRICED})).is_success
    await api.worker(instance_type="g5.xlarge")
    user = await api.engine.accounts.tenancy.create_user(email="ada@example.com")
    await api.engine.accounts.ledger.credit(user.tenant_id, 100, reference="test")
    await api.engine.jobs.submit.submit(
        JobRequest(tenant_id=user.tenant_id, user_id=user.id, idempotency_key="one", effect_id=effect_id)
    )
    [leased] = await api.engine.queue.leasing.lease(LeaseRequest(worker_id="gpu-1", providers=["self_hosted"]))
    await api.clock.set(api.clock.now + timedelta(seconds=seconds))
    await api.engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)
    await api.engine.autoscaling.usage.run_once()
    return leased.dispatch_id, user.tenant_id


async def test_usage_is_grouped_by_fleet_workflow_and_tenant(api: Api) -> None:
    await api.stop_loops()
    dispatch_id, tenant_id = await finish(api, 50)
    admin = await api.user("boss@example.com", is_admin=True)
    for by, name in {"fleet": "home-clip", "workflow": "clip", "tenant": tenant_id}.items():
        [row] = await admin.get("/api/admin/usage", params={"by": by})
        assert (row["name"], row["jobs"], row["busy_seconds"], row["lost_seconds"]) == (name, 1, 50, 0)
        assert row["cost"] == pytest.approx(0.05)
    dispatch = await admin.get(f"/api/admin/dispatches/{dispatch_id}")
    assert dispatch["machine_cost"] == pytest.approx(0.05)


async def test_usage_can_be_limited_to_days(api: Api) -> None:
    await api.stop_loops()
    await finish(api, 50)
    admin = await api.user("boss@example.com", is_admin=True)
    day = api.clock.now.date()
    assert len(await admin.get("/api/admin/usage", params={"from": str(day), "to": str(day)})) == 1
    before = str(day - timedelta(days=1))
    assert await admin.get("/api/admin/usage", params={"from": before, "to": before}) == []
    answer = await admin.call("GET", "/api/admin/usage", params={"from": str(day), "to": before})
    assert problem_of(answer, 422)["errors"] == {"from": "The first day must not be after `to`."}
    for wrong in ({"by": "moon"}, {"from": "yesterday"}, {"to": "0001-01-01"}, {"to": "9999-12-31"}):
        problem_of(await admin.call("GET", "/api/admin/usage", params=wrong), 422)


async def test_only_administrators_see_usage(api: Api) -> None:
    problem_of(await (await api.user()).call("GET", "/api/admin/usage"), 403)


@pytest.mark.parametrize(
    ("cost", "unpriced", "shown"),
    [
        (0.0, 0.0, "0.00"),
        (0.0, 60.0, "unknown"),
        # Sums of floats differ in their last digits.
        (0.0, 60.0 - 7e-15, "unknown"),
        (0.0033, 0.0, "0.0033"),
        (0.0033, 20.0, "0.0033 + unknown"),
        (0.00001, 0.0, "<0.0001"),
        (0.5, 0, "0.50"),
        (1200, 0, "1,200.00"),
    ],
)
def test_unpriced_cost_is_unknown_and_small_cost_is_not_zero(cost: float, unpriced: float, shown: str) -> None:
    assert cost_text(cost, 60.0, unpriced) == shown


@pytest.mark.both_databases
async def test_revenue_is_compared_with_the_cost(api: Api) -> None:
    await api.stop_loops()
    _dispatch_id, tenant_id = await finish(api, 50)
    await api.engine.outbox.delivery.idle()
    admin = await api.user("boss@example.com", is_admin=True)
    # The effect of a deleted job is still known.
    [job] = (await api.engine.jobs.views.jobs(tenant_id, limit=1)).items
    await api.engine.jobs.removal.remove_job(tenant_id, job.job.id)
    day = str(api.clock.now.date())
    for by, name in {"effect": "clip", "tenant": "ada@example.com", "day": day}.items():
        [row] = await admin.get("/api/admin/usage/revenue", params={"by": by})
        assert (row["name"], row["jobs"], row["tokens"], row["gpu_seconds"]) == (name, 1, 7, 50)
        assert (row["revenue"], row["cost"]) == (None, pytest.approx(0.05))
    before = str(api.clock.now.date() - timedelta(days=1))
    assert await admin.get("/api/admin/usage/revenue", params={"from": before, "to": before}) == []
    user = await api.user("eve@example.com")
    problem_of(await user.call("GET", "/api/admin/usage/revenue"), 403)
