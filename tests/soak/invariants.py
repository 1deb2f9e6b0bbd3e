"""Check the guarantees to users, workers and operators that must hold once everything is healed and drained.

They are checked over the API, in the databases and on the disks.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select

from comfyrelay.domain.ids import job_folder, source_path
from comfyrelay.domain.queue.states import TERMINAL_JOB, Outcome
from comfyrelay.store.tenant import tables as tenant
from tests.soak.clients import Client
from tests.soak.plan import COMFYUIS, SERVERS, STORAGE, WORKERS
from tests.soak.wire import Wire
from tests.soak.world import World
from tests.support.invariants import ALWAYS, QUIET, Facts, every_job_has_ended, find_violations, read_facts_from
from tests.support.stored_objects import stored_and_known_paths

# After the faults, only work that never ends takes this long, even on a busy machine.
PATIENCE_SECONDS = 240.0
POLL_SECONDS = 0.1
# Longer than every grace period of retention.
RETENTION_SECONDS = 2 * 3600.0
# Log events of a server that repaired what reconcile would report.
REPAIRS = "repair.done"
# Expected error events: a database or a disk is unavailable.
EXPECTED = ("DatabaseUnavailable", "worker.disk_error")
SETTLEMENT = {"completed": "JOB_CONSUME", "failed": "JOB_REFUND", "canceled": "JOB_REFUND"}
# Outcomes allowed after a report was answered with 200: the requested outcome, or an earlier cancel.
ENDS = {
    "complete": {Outcome.COMPLETED},
    "fail": {Outcome.FAILED, Outcome.CANCELED, Outcome.REQUEUED, Outcome.DEFERRED},
    "requeue": {Outcome.REQUEUED, Outcome.DEFERRED, Outcome.CANCELED, Outcome.FAILED},
}


class BrokenGuarantee(AssertionError):
    pass


async def drain(world: World, clients: Sequence[Client]) -> None:
    """Wait until every job has ended, every webhook is delivered, and nothing is in progress."""
    await _until(world, clients, _unfinished_jobs)
    for wire in world.wires.values():
        await wire.settle()
    if refused := [status for status in await world.wires[STORAGE].write_again() if status >= 300]:
        raise BrokenGuarantee(f"a URL of a lease expired too early: {refused}")
    await _until(world, clients, _pending_work)
    await _until(world, clients, _orphans_on_workers)


async def _until(world: World, clients: Sequence[Client], check: Any) -> None:
    remaining: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            # other processes send no signal, so poll
            while remaining := await check(world, clients):
                if exited := _exited(world):
                    raise BrokenGuarantee("\n".join([*exited, *remaining]))
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise BrokenGuarantee("\n".join(remaining)) from None


async def _unfinished_jobs(_world: World, clients: Sequence[Client]) -> list[str]:
    found = []
    for client in clients:
        for job_id in client.jobs:
            job = await client.call_successfully("GET", f"/api/ai-jobs/{job_id}")
            if job["status"] == "paused":
                # also a pause that a late request requested
                await client.call("POST", f"/api/ai-jobs/{job_id}/resume")
            if job["waiting"] and job["waiting"]["reason"] == "queue_paused":
                await client.call("POST", "/api/queue/resume")
            if job["status"] not in TERMINAL_JOB:
                found.append(f"the job {job_id} of {client.tenant.name} is still {job['status']}: {job['waiting']}")
    return found


async def _pending_work(world: World, clients: Sequence[Client]) -> list[str]:
    facts = await read_facts_from(world.engine.databases)
    # include jobs of clients that did not wait for the response
    found = find_violations(facts, (*QUIET[:1], every_job_has_ended))
    if found:
        # these jobs may wait in a paused queue
        for client in clients:
            await client.call("POST", "/api/queue/resume")
    for shard in world.engine.databases.shards.values():
        async with shard.read() as tx:
            rows = await tx.execute(select(tenant.webhook_deliveries.c.job_id, tenant.webhook_deliveries.c.status))
            found += [f"the webhook of {row.job_id} is {row.status}" for row in rows if row.status != "delivered"]
    return found


async def _orphans_on_workers(world: World, _clients: Sequence[Client]) -> list[str]:
    """Return the processes, runs and files of jobs that remain on the hosts of workers."""
    found = []
    for name in WORKERS:
        found += [f"{name} has the process {pid}" for pid in world.processes[name].children()]
        root = world.data_of(name)
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            if {"work", "held", "left"} & set(path.relative_to(root).parts) or path.suffix in (".part", ".tmp"):
                found.append(f"{name} has the file {path}")
    for name in COMFYUIS:
        queue = await world.get(name, "/queue")
        found += [f"{name} still has a run" for _ in (*queue["queue_running"], *queue["queue_pending"])]
        root = world.folder_of(name)
        found += [
            f"{name} has the file {path}"
            for kind in ("input", "output", "temp")
            for path in (root / kind).rglob("*")
            if path.is_file()
        ]
    return found


async def check(world: World, clients: Sequence[Client]) -> Counter[str]:
    """Check all guarantees; return the outcomes of this seed's jobs."""
    found = [*_exited(world), *_repaired(world)]
    found += await _after_retention(world, clients)
    facts = await read_facts_from(world.engine.databases)
    found += find_violations(facts, (*ALWAYS, *QUIET, every_job_has_ended))
    found += [
        f"reconcile: {finding.kind}: {finding.text}"
        for finding in (await world.engine.operations.reconciler.run()).findings
    ]
    found += list(_accepted_reports(world, facts))
    found += list(_webhooks(world, facts))
    ends: Counter[str] = Counter()
    reported = _reported_hashes(world, facts)
    for client in clients:
        for job_id in client.jobs:
            job = await client.call_successfully("GET", f"/api/ai-jobs/{job_id}")
            ends[job["status"]] += 1
            found += await _check_job(client, job, reported.get(job_id, set()))
        found += await _check_wallet(client)
    known = {job.id for job in facts.jobs}
    found += [
        f"the accepted job {job_id} does not exist"
        for client in clients
        for job_id in client.jobs
        if job_id not in known
    ]
    if found:
        raise BrokenGuarantee("\n".join(found))
    return ends


def _exited(world: World) -> list[str]:
    return [f"{name} has exited" for name, process in world.processes.items() if not process.is_running]


def _repaired(world: World) -> Iterable[str]:
    """Check that no server repaired anything: since every step is recorded, no state should be inconsistent."""
    for name in SERVERS:
        for line in world.processes[name].logged(REPAIRS):
            yield f"{name} had to repair: {line.get('was')}"


def _accepted_reports(world: World, facts: Facts) -> Iterable[str]:
    """Check that only the current lease counts: an accepted report is the outcome of its lease."""
    outcomes = {lease.lease_token: lease.outcome for lease in facts.leases}
    for name in WORKERS:
        for call in world.wires[name].calls:
            verb = call.path.removeprefix("/api/worker/")
            if call.status != 200 or verb not in ENDS:
                continue
            outcome = outcomes.get(call.body["lease_token"])
            if outcome not in ENDS[verb]:
                yield f"{verb} of {name} was accepted, but its lease {call.body['lease_token']} ended as {outcome}"


def _webhooks(world: World, facts: Facts) -> Iterable[str]:
    ids: dict[str, str] = {}
    for job_id, sent in world.receiver.ids.items():
        if len(set(sent)) != 1:
            yield f"the webhooks of the job {job_id} have several ids: {sorted(set(sent))}"
        if (other := ids.setdefault(sent[0], job_id)) != job_id:
            yield f"the webhooks of the jobs {job_id} and {other} have the same id"
    known = {job.id for job in facts.jobs}
    for job_id in world.receiver.ids.keys() - known:
        yield f"there is a webhook of the unknown job {job_id}"


def _reported_hashes(world: World, facts: Facts) -> dict[str, set[str]]:
    """Return for each job the output hash that the holder of the completing lease reported."""
    hashes: dict[str, set[str]] = {}
    for name in WORKERS:
        for report in world.wires[name].reports:
            hashes.setdefault(report["lease_token"], set()).add(report["output"]["sha256"])
    job_of = {dispatch.id: dispatch.tenant_job_id for dispatch in facts.dispatches}
    return {
        job_of[lease.dispatch_id]: hashes.get(lease.lease_token, set())
        for lease in facts.leases
        if lease.outcome == Outcome.COMPLETED
    }


async def _check_job(client: Client, job: Any, reported: Container[str]) -> list[str]:
    """Check an ended job as its user sees it."""
    name, found = f"the job {job['id']} of {client.tenant.name}", []
    if (job["status"] == "completed") != (len(job["outputs"]) == 1):
        found.append(f"{name} is {job['status']} and has {len(job['outputs'])} outputs")
    for output in job["outputs"]:
        async with client.world.http.get(output["url"]) as answer:
            content = await answer.read()
        if answer.status != 200:
            found.append(f"the output of {name} cannot be read: {answer.status}")
            continue
        if (found_hash := hashlib.sha256(content).hexdigest()) != output["content_hash"]:
            found.append(f"the output of {name} does not match its hash")
        if found_hash not in reported:
            found.append(f"the output of {name} is not what its worker reported")
    events = await _events(client, job["id"])
    if [number for number, _ in events] != list(range(1, len(events) + 1)):
        found.append(f"the events of {name} have a gap: {events}")
    if not events or events[-1][1] != f"job:{job['status']}":
        found.append(f"{name} is {job['status']}, its events are {events}")
    deliveries = (await client.call_successfully("GET", f"/api/ai-jobs/{job['id']}/deliveries"))["deliveries"]
    if [delivery["id"] for delivery in deliveries] != [*set(client.world.receiver.ids.get(job["id"], []))]:
        found.append(
            f"{name} has the webhooks {deliveries}, and {client.world.receiver.ids.get(job['id'])} were received"
        )
    return found


async def _events(client: Client, job_id: str) -> list[tuple[int, str]]:
    """Return all events of an ended job, whose stream ends as well."""
    url = f"{client.world.url}/api/ai-jobs/{job_id}/events"
    async with client.world.http.get(url, headers=client.tenant.headers) as answer:
        text = await answer.text()
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != ":")
        if "id" in fields:
            found.append((int(fields["id"]), fields["event"]))
    return found


async def _check_wallet(client: Client) -> list[str]:
    """Check the user's statement: each job is reserved once and settled once, and the sums match."""
    transactions: list[Any] = []
    cursor = ""
    while True:
        page = await client.call_successfully("GET", f"/api/wallet?limit=200{cursor}")
        transactions += page["transactions"]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    found = []
    if page["balance"] != sum(transaction["amount"] for transaction in transactions):
        found.append(f"the balance of {client.tenant.name} is {page['balance']}, which is not the sum")
    booked: Counter[tuple[str, str]] = Counter(
        (transaction["job_id"], transaction["type"]) for transaction in transactions
    )
    for job_id in client.jobs:
        job = await client.call_successfully("GET", f"/api/ai-jobs/{job_id}")
        for kind in ("JOB_RESERVE", "JOB_CONSUME", "JOB_REFUND"):
            expected = int(kind in ("JOB_RESERVE", SETTLEMENT[job["status"]]))
            if booked[job_id, kind] != expected:
                found.append(f"the {job['status']} job {job_id} has {booked[job_id, kind]} × {kind}")
    credited = sum(transaction["amount"] for transaction in transactions if transaction["type"] == "PAYMENT_CREDIT")
    if credited != client.world.credits[client.tenant.name]:
        found.append(f"{client.tenant.name} was credited {credited}, not {client.world.credits[client.tenant.name]}")
    return found


async def _after_retention(world: World, clients: Sequence[Client]) -> list[str]:
    """Check that after retention every object in the storage has a row, and every row has its object."""
    # the storage reports full seconds of the real clock
    began = datetime.now(UTC) - timedelta(seconds=1)
    for _ in range(2):
        await world.advance(RETENTION_SECONDS)
        await world.engine.operations.retention.run_once()
    # posters and previews are deleted with their files
    stored, rows = await stored_and_known_paths(world.engine)
    own = {job_folder(client.tenant.id, job_id) for client in clients for job_id in client.jobs}
    late = await _remove_late_posters(world, own, since=began) if stored - rows else set()
    return [
        *(f"the file {path} in the storage has no row" for path in sorted(stored - rows - late)),
        *(f"the file {path} is not in the storage" for path in sorted(rows - stored)),
    ]


async def _remove_late_posters(world: World, own: Container[str], *, since: datetime) -> set[str]:
    """Remove posters that were written after the search for orphans began, and return the files they were made of.

    The thread of a postponed poster repeats its write for some seconds. The search comes an hour after the job ended,
    but the clock of this test has skipped that hour. The posters of jobs outside the `own` folders came after the
    search of an earlier seed.
    """
    objects = {file.path: file.modified_at async for file in world.engine.objects.list("tenants")}
    late = {
        path: source
        for path, modified_at in objects.items()
        if (source := source_path(path)) not in objects and (modified_at >= since or path.rpartition("/")[0] not in own)
    }
    await world.engine.objects.remove_many(list(late))
    return set(late.values())


def server_errors(wires: Mapping[str, Wire]) -> list[str]:
    """Check that servers answer 503 if a dependency is down, and never any other 5xx."""
    return [
        f"{call.method} {call.path} of {name} was answered with {call.status}"
        for name, wire in wires.items()
        # the storage server is not part of ComfyRelay
        if name != STORAGE
        for call in wire.calls
        if call.status >= 500 and call.status != 503
    ]


def unexpected(world: World, since: Mapping[str, int]) -> list[str]:
    """Return error logs of this seed that break no guarantee, for the report."""
    found = []
    for name, process in world.processes.items():
        for line in process.text()[since[name] :].splitlines():
            with suppress(ValueError):
                entry = json.loads(line) if line.startswith("{") else {}
                if entry.get("level") == "error":
                    why = str(entry.get("exception", "")).rstrip().rpartition("\n")[2]
                    found.append(f"{name.split('-')[0]}: {entry['event']} {why}"[:300])
    return [text for text in found if not any(word in text for word in EXPECTED)]
