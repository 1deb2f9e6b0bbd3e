"""`/api/jobs`: the queue and the history as a single list of jobs."""

from typing import Any

from aiohttp import web

from comfyrelay.simulator.process import SimulatedProcess
from comfyrelay.simulator.routes.prompts import is_canonical_uuid
from comfyrelay.simulator.running.jobs import job_of_entry, job_of_item, with_details

_STATUSES = ("pending", "in_progress", "completed", "failed", "cancelled")


class JobRoutes:
    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    def routes(self) -> list[web.RouteDef]:
        routes = [web.get("/api/jobs", self.list_jobs), web.get("/api/jobs/{job_id}", self.get_job)]
        if self._process.options.is_current:
            routes += [
                web.post("/api/jobs/cancel", self.cancel_jobs),
                web.post("/api/jobs/{job_id}/cancel", self.cancel_job),
            ]
        return routes

    async def list_jobs(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(self._page(dict(request.query)))
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)

    async def get_job(self, request: web.Request) -> web.Response:
        job_id = request.match_info["job_id"]
        queue = self._process.queue.snapshot()
        for group, status in (("queue_running", "in_progress"), ("queue_pending", "pending")):
            for item in queue[group]:
                if item[1] == job_id:
                    return web.json_response(with_details(job_of_item(item, status), item, None))
        entry = self._process.queue.history.get(job_id)
        if entry is None:
            return web.json_response({"error": "Job not found"}, status=404)
        return web.json_response(with_details(self._finished(entry), entry["prompt"], entry))

    async def cancel_job(self, request: web.Request) -> web.Response:
        return web.json_response({"cancelled": self._process.cancel(request.match_info["job_id"])})

    async def cancel_jobs(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except ValueError:
            return web.json_response({"error": "Request body must be valid JSON"}, status=400)
        job_ids = body.get("job_ids") if isinstance(body, dict) else None
        if not isinstance(job_ids, list):
            return web.json_response({"error": "job_ids must be a list"}, status=400)
        if invalid := [job_id for job_id in job_ids if not is_canonical_uuid(job_id)]:
            return web.json_response({"error": "job_ids contains invalid id(s)", "invalid_ids": invalid}, status=400)
        canceled = [job_id for job_id in job_ids if self._process.cancel(job_id)]
        return web.json_response({"cancelled": bool(canceled)})

    def _page(self, query: dict[str, str]) -> dict[str, Any]:
        allowed = _STATUSES if self._process.options.is_current else _STATUSES[:-1]
        statuses = _statuses(query.get("status"), allowed)
        sort_by = _one_of("sort_by", query.get("sort_by", "created_at"), ("created_at", "execution_duration"))
        order = _one_of("sort_order", query.get("sort_order", "desc"), ("asc", "desc"))
        offset = max(_integer("offset", query.get("offset", "0")), 0)
        limit = _integer("limit", query["limit"]) if "limit" in query else None
        if limit is not None and limit <= 0:
            raise ValueError("limit must be a positive integer")
        jobs = [job for job in self._all() if job["status"] in statuses]
        if "workflow_id" in query:
            jobs = [job for job in jobs if job.get("workflow_id") == query["workflow_id"]]
        jobs.sort(key=_created if sort_by == "created_at" else _duration, reverse=order == "desc")
        page = jobs[offset:] if limit is None else jobs[offset : offset + limit]
        pagination = {"offset": offset, "limit": limit, "total": len(jobs), "has_more": offset + len(page) < len(jobs)}
        return {"jobs": page, "pagination": pagination}

    def _finished(self, entry: dict[str, Any]) -> dict[str, Any]:
        return job_of_entry(entry, names_canceled=self._process.options.is_current)

    def _all(self) -> list[dict[str, Any]]:
        queue = self._process.queue.snapshot()
        return [
            *(job_of_item(item, "in_progress") for item in queue["queue_running"]),
            *(job_of_item(item, "pending") for item in queue["queue_pending"]),
            *(self._finished(entry) for entry in self._process.queue.history.values()),
        ]


def _statuses(given: str | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    if given is None:
        return allowed
    wanted = tuple(status.strip().lower() for status in given.split(",") if status.strip())
    unknown = [status for status in wanted if status not in allowed]
    if unknown:
        raise ValueError(f"Invalid status value(s): {', '.join(unknown)}. Valid values: {', '.join(allowed)}")
    return wanted


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value.lower() not in allowed:
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}")
    return value.lower()


def _integer(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name} must be an integer") from None


def _created(job: dict[str, Any]) -> int:
    return int(job.get("create_time") or 0)


def _duration(job: dict[str, Any]) -> int:
    return int((job.get("execution_end_time") or 0) - (job.get("execution_start_time") or 0))
