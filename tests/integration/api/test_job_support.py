"""Operators support customers: they see a customer's job, refund it once, and run it again for free."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from comfyrelay.services.accounts.revenue import RevenueGrouping
from tests.support.api import Api, problem_of
from tests.support.operator import OperatorScenario, open_operator_scenario

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    desk = await open_operator_scenario(api)
    await desk.worker()
    return desk


async def balance_of(desk: OperatorScenario) -> int:
    return await desk.api.engine.accounts.ledger.balance(desk.user.tenant_id)


async def path_of_completed(desk: OperatorScenario) -> str:
    return f"/dispatches/{(await desk.dispatch(await desk.completed())).id}"


async def entries_of(desk: OperatorScenario) -> list[tuple[str, int]]:
    found = await desk.api.engine.accounts.ledger.transactions(desk.user.tenant_id)
    return [(entry.type, entry.amount) for entry in reversed(found)]


class TestView:
    async def test_operator_sees_the_customers_view_and_the_raw_error(self, desk: OperatorScenario) -> None:
        job = await desk.failed("CUDA error on gpu-7")
        found = await desk.get(f"/dispatches/{(await desk.dispatch(job)).id}/job")
        assert (found["email"], found["effect_slug"]) == ("ada@example.com", "clip")
        assert found["error_detail"] == "CUDA error on gpu-7"
        assert (found["job"]["id"], found["job"]["refunded_tokens"]) == (job.id, 7)
        assert "gpu-7" not in str(found["job"]) + str(found["events"])
        assert [event["type"] for event in found["events"]][-1] == "job:failed"

    async def test_operator_sees_result_and_inputs(self, desk: OperatorScenario) -> None:
        found = await desk.get(f"{await path_of_completed(desk)}/job")
        assert [output["number"] for output in found["job"]["outputs"]] == [1]
        assert found["values"] == {"prompt": "a cat"}
        assert found["job"]["charged_tokens"] == 7

    async def test_deleted_job_is_not_found(self, desk: OperatorScenario) -> None:
        problem_of(await desk.call("GET", "/dispatches/999/job"), 404)


class TestRefund:
    async def test_completed_job_is_refunded_once(self, desk: OperatorScenario) -> None:
        path = await path_of_completed(desk)
        before = await balance_of(desk)
        answers = await asyncio.gather(*(desk.call("POST", f"{path}/refund") for _ in range(4)))
        assert [answer.json()["data"] for answer in answers] == [{"tokens": 7}] * 4
        assert await balance_of(desk) == before + 7
        assert (await entries_of(desk)).count(("JOB_CREDIT", 7)) == 1
        assert (await desk.get(f"{path}/job"))["job"]["refunded_tokens"] == 7

    async def test_refund_is_in_the_audit_log_with_its_amount(self, desk: OperatorScenario) -> None:
        path = await path_of_completed(desk)
        customer = (await desk.get(f"{path}/job"))["email"]
        for _ in range(2):
            await desk.send("POST", f"{path}/refund")
        again, entry = (await desk.get("/audit", action="refund_dispatch"))["items"]
        assert (entry["actor"], entry["subject"], entry["is_done"]) == ("root@example.com", path[1:], True)
        [refund] = entry["after"]["refunds"]
        assert (refund["dispatch_id"], refund["amount"], again["after"]) == (int(path.rsplit("/", 1)[1]), 7, None)
        found = (await desk.get("/audit", search=customer, action="refund_dispatch"))["items"]
        assert [each["id"] for each in found] == [entry["id"]]

    async def test_free_run_is_in_the_audit_log_of_its_customer(self, desk: OperatorScenario) -> None:
        path = await path_of_completed(desk)
        customer = (await desk.get(f"{path}/job"))["email"]
        job = (await desk.send("POST", f"{path}/run-free"))["job_id"]
        [entry] = (await desk.get("/audit", search=customer, action="run_free"))["items"]
        [run] = entry["after"]["free_runs"]
        assert (run["dispatch_id"], run["job_id"]) == (int(path.rsplit("/", 1)[1]), job)
        assert (await desk.get("/audit", search=run["tenant_id"], action="run_free"))["items"] == [entry]

    async def test_bulk_refund_is_in_the_audit_log_with_its_amounts(self, desk: OperatorScenario) -> None:
        dispatches = [int((await path_of_completed(desk)).rsplit("/", 1)[1]) for _ in range(2)]
        await desk.send("POST", "/dispatches/bulk", {"action": "refund", "ids": dispatches})
        [entry] = (await desk.get("/audit", action="change_dispatches"))["items"]
        refunds = [(each["dispatch_id"], each["amount"]) for each in entry["after"]["refunds"]]
        assert (refunds, entry["is_done"]) == ([(each, 7) for each in dispatches], True)

    async def test_refunded_job_is_consistent_and_not_revenue(self, desk: OperatorScenario) -> None:
        await desk.completed()
        await desk.send("POST", f"{await path_of_completed(desk)}/refund")
        assert (await desk.api.engine.operations.reconciler.run()).is_clean
        [effect] = await desk.api.engine.accounts.revenue.report(RevenueGrouping.EFFECT)
        assert (effect.jobs, effect.tokens) == (2, 7)

    async def test_only_a_completed_job_with_a_price_is_refunded(self, desk: OperatorScenario) -> None:
        failed = await desk.dispatch(await desk.failed())
        path = await path_of_completed(desk)
        again = await desk.send("POST", f"{path}/run-free")
        await desk.complete(await desk.lease())
        free = await desk.get("/dispatches", search=again["job_id"])
        before = await balance_of(desk)
        problem_of(await desk.call("POST", f"/dispatches/{failed.id}/refund"), 409)
        problem_of(await desk.call("POST", f"/dispatches/{free['items'][0]['id']}/refund"), 409)
        assert await balance_of(desk) == before


class TestRunFree:
    async def test_customer_gets_another_run_for_free(self, desk: OperatorScenario) -> None:
        path = await path_of_completed(desk)
        before = await balance_of(desk)
        again = await desk.send("POST", f"{path}/run-free")
        await desk.complete(await desk.lease())
        job = await desk.api.engine.jobs.views.job(desk.user.tenant_id, again["job_id"])
        assert (job.job.status, job.job.charged_tokens) == ("completed", 0)
        assert await balance_of(desk) == before
        assert (await desk.api.engine.operations.reconciler.run()).is_clean

    async def test_customer_pays_for_repeating_a_free_run(self, desk: OperatorScenario) -> None:
        again = await desk.send("POST", f"{await path_of_completed(desk)}/run-free")
        await desk.complete(await desk.lease())
        repeated = await desk.api.engine.jobs.submit.run_again(desk.user.tenant_id, again["job_id"])
        assert repeated.reserved_tokens == 7

    async def test_retry_of_a_failed_free_run_is_free(self, desk: OperatorScenario) -> None:
        again = await desk.send("POST", f"{await path_of_completed(desk)}/run-free")
        await desk.fail(await desk.lease())
        retried = await desk.api.engine.jobs.submit.retry(desk.user.tenant_id, again["job_id"])
        assert (retried.reserved_tokens, retried.again_tokens) == (0, 7)

    async def test_unfinished_job_is_not_run_again(self, desk: OperatorScenario) -> None:
        dispatch = await desk.dispatch(await desk.submit())
        problem_of(await desk.call("POST", f"/dispatches/{dispatch.id}/run-free"), 409)


class TestBulk:
    async def change(self, desk: OperatorScenario, action: str, ids: list[int]) -> Any:
        return await desk.send("POST", "/dispatches/bulk", {"action": action, "ids": ids})

    async def test_jobs_that_cannot_be_changed_are_named(self, desk: OperatorScenario) -> None:
        done = (await desk.dispatch(await desk.completed())).id
        queued = (await desk.dispatch(await desk.submit())).id
        found = await self.change(desk, "refund", [done, queued, 999])
        assert (found["matched"], found["changed"]) == (3, 1)
        assert [refused["id"] for refused in found["refused"]] == [str(queued), "999"]

    @pytest.mark.parametrize(
        ("action", "status"), [("cancel", "canceled"), ("retry", "failed"), ("run_free", "failed")]
    )
    async def test_action_changes_all_jobs(self, desk: OperatorScenario, action: str, status: str) -> None:
        jobs = [await (desk.submit() if action == "cancel" else desk.failed()) for _ in range(2)]
        ids = [(await desk.dispatch(job)).id for job in jobs]
        assert (await self.change(desk, action, ids))["changed"] == 2
        assert {(await desk.get(f"/dispatches/{id_}"))["status"] for id_ in ids} == {status}
        waiting = await desk.ids(status="queued")
        assert len(waiting) == (0 if action == "cancel" else 2)


class TestFilters:
    async def test_jobs_are_found_by_user_and_effect(self, desk: OperatorScenario) -> None:
        job = await desk.submit()
        await desk.api.user("bob@example.com")
        assert await desk.ids(user="ada@example.com", effect="clip") == [job.id]
        assert await desk.ids(user="bob@example.com") == []
        assert await desk.ids(user="eve@example.com") == []
        assert await desk.ids(effect="another") == []
        assert await desk.ids(user="ada@example.com", tenant="another") == []

    async def test_empty_queue_has_no_jobs_of_a_day(self, desk: OperatorScenario) -> None:
        assert await desk.ids(**{"from": "2026-03-01", "to": "2026-03-02"}) == []

    async def test_jobs_are_found_by_day(self, desk: OperatorScenario) -> None:
        first = desk.api.clock.now
        jobs = []
        for day in range(3):
            await desk.api.clock.set(first + timedelta(days=day))
            jobs.append((await desk.submit()).id)
        days = [(first + timedelta(days=day)).date().isoformat() for day in range(3)]
        assert await desk.ids(**{"from": days[1]}) == [jobs[2], jobs[1]]
        assert await desk.ids(to=days[1]) == [jobs[1], jobs[0]]
        assert await desk.ids(**{"from": days[1], "to": days[1]}) == [jobs[1]]
        problem_of(await desk.call("GET", f"/dispatches?from={days[1]}&to={days[0]}"), 422)
