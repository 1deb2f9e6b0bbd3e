"""Jobs run again only while their effect is offered and their workflow exists; test runs, only for administrators."""

from typing import Any

import pytest

from tests.support.api import Api, Caller, data_of, problem_of
from tests.support.chromium import PROMPT_GRAPH
from tests.support.operator import OperatorScenario, open_operator_scenario


@pytest.fixture
async def desk(api: Api) -> OperatorScenario:
    found = await open_operator_scenario(api)
    await found.worker("gpu-1")
    return found


async def submit(caller: Caller, effect_id: int, key: str) -> str:
    body = {"effect_id": effect_id, "idempotency_key": key, "input_payload": {"prompt": "a cat"}}
    id_: str = (await caller.post("/api/ai-jobs", body))["id"]
    return id_


async def demote_administrator(desk: OperatorScenario) -> None:
    assert desk.admin.user is not None
    other = (await desk.api.user("other-admin@example.com", is_admin=True)).user
    assert other is not None
    await desk.api.engine.accounts.tenancy.change_user(desk.admin.user.id, is_admin=False, by=other)


class TestTestRunsAgain:
    async def test_administrator_runs_a_test_run_again(self, desk: OperatorScenario) -> None:
        job_id = (await desk.send("POST", "/workflows/clip/test-run", {}))["job_id"]
        await desk.complete(await desk.lease())
        await desk.admin.post(f"/api/ai-jobs/{job_id}/again")

    @pytest.mark.parametrize("action", ["again", "retry"])
    async def test_former_administrator_cannot_repeat_a_test_run(self, desk: OperatorScenario, action: str) -> None:
        job_id = (await desk.send("POST", "/workflows/clip/test-run", {}))["job_id"]
        await desk.fail(await desk.lease())
        await demote_administrator(desk)
        problem = problem_of(await desk.admin.call("POST", f"/api/ai-jobs/{job_id}/{action}"), 403)
        assert "only an administrator can run" in problem["detail"]

    async def test_bulk_retry_skips_test_runs_of_a_former_administrator(self, desk: OperatorScenario) -> None:
        job_id = (await desk.send("POST", "/workflows/clip/test-run", {}))["job_id"]
        await desk.fail(await desk.lease())
        await demote_administrator(desk)
        done: Any = await desk.admin.post("/api/ai-jobs/bulk", {"action": "retry", "ids": [job_id]})
        assert done["changed"] == 0


class TestEffectsThatAreNotOffered:
    @pytest.mark.parametrize("how", ["unpublished", "deleted", "workflow disabled"])
    async def test_job_of_an_effect_that_is_not_offered_does_not_run_again(
        self, desk: OperatorScenario, how: str
    ) -> None:
        caller = await desk.api.user("ada2@example.com", tokens=100)
        job_id = await submit(caller, desk.effect_id, "one")
        await desk.complete(await desk.lease())
        if how == "unpublished":
            await desk.send("PATCH", "/effects/clip", {"is_active": False})
        elif how == "deleted":
            await desk.send("DELETE", "/effects/clip")
        else:
            await desk.send("PATCH", "/workflows/clip", {"is_active": False})
        problem = problem_of(await caller.call("POST", f"/api/ai-jobs/{job_id}/again"), 409)
        assert "is no longer offered, so this cannot run again." in problem["detail"]

    async def test_batch_of_an_unpublished_effect_does_not_run_again(self, desk: OperatorScenario) -> None:
        caller = await desk.api.user("ada2@example.com", tokens=100)
        items = [{"input_payload": {"prompt": "a cat"}}]
        body = {"effect_id": desk.effect_id, "idempotency_key": "batch", "items": items}
        batch_id = data_of(await caller.call("POST", "/api/batches", body))["id"]
        await desk.complete(await desk.lease())
        await desk.send("PATCH", "/effects/clip", {"is_active": False})
        problem_of(await caller.call("POST", f"/api/batches/{batch_id}/again"), 409)

    async def test_failed_job_of_an_unpublished_effect_can_be_retried(self, desk: OperatorScenario) -> None:
        caller = await desk.api.user("ada2@example.com", tokens=100)
        job_id = await submit(caller, desk.effect_id, "one")
        await desk.fail(await desk.lease())
        await desk.send("PATCH", "/effects/clip", {"is_active": False})
        retried = await caller.post(f"/api/ai-jobs/{job_id}/retry")
        assert retried["reserved_tokens"] > 0


class TestDeletedWorkflows:
    @pytest.mark.parametrize("action", ["again", "retry"])
    async def test_job_of_a_deleted_workflow_of_its_user_is_refused(self, desk: OperatorScenario, action: str) -> None:
        caller = await desk.api.user("ada2@example.com")
        slug = (await caller.post("/api/workflows", {"graph": PROMPT_GRAPH, "name": "mine"}))["slug"]
        job_id = (await caller.post("/api/ai-jobs", {"workflow_slug": slug, "idempotency_key": "one"}))["id"]
        await caller.post(f"/api/ai-jobs/{job_id}/cancel")
        data_of(await caller.call("DELETE", f"/api/workflows/{slug}"))
        problem = problem_of(await caller.call("POST", f"/api/ai-jobs/{job_id}/{action}"), 409)
        assert problem["detail"] == (
            "The workflow of this job was deleted, so it cannot run again. Add the workflow again and submit a new job."
        )

    async def test_failed_items_of_a_deleted_workflow_are_not_retried(self, desk: OperatorScenario) -> None:
        caller = await desk.api.user("ada2@example.com", tokens=100)
        items = [{"input_payload": {"prompt": "a cat"}}]
        body = {"effect_id": desk.effect_id, "idempotency_key": "batch", "items": items}
        batch_id = data_of(await caller.call("POST", "/api/batches", body))["id"]
        await desk.fail(await desk.lease())
        await desk.send("DELETE", "/effects/clip")
        await desk.send("DELETE", "/workflows/clip")
        problem = problem_of(await caller.call("POST", f"/api/batches/{batch_id}/retry-failed"), 409)
        assert problem["detail"].endswith("it cannot run again. Choose another effect.")
