"""Submitting: from what a user asks for to a job with its tokens reserved and its dispatch in the queue."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from comfyrelay.domain.ids import digest, new_id
from comfyrelay.domain.payloads import Snapshot, StoredFile, asset_list, text_values
from comfyrelay.domain.properties import Property, Value, resolve
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.catalogue import Effect, Workflow
from comfyrelay.domain.records.jobs import Job, NewJob, Video
from comfyrelay.domain.states import JobStatus, Stage, WorkflowKind
from comfyrelay.domain.webhooks import url_problem
from comfyrelay.errors import Conflict, Forbidden, IdempotencyConflict, InvalidInput, NotFound, TooManyActiveJobs
from comfyrelay.services.accounts.ledger import reserve
from comfyrelay.services.catalogue.graphs import Graphs, WorkflowHasher
from comfyrelay.services.databases import Databases
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.services.steps import Step
from comfyrelay.store import outbox
from comfyrelay.store.central import catalogue
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.outbox import Submission
from comfyrelay.store.tenant import jobs, ledger, media
from comfyrelay.text import is_storable

log = structlog.get_logger(__name__)

# Items of a batch and retries get keys of their own.
RESERVED_KEYS = ("batch:", "retry:")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What a submission is held to."""

    stage: str
    max_attempts: int
    max_active_jobs: int
    priority_min: int
    priority_max: int
    catalogue_disk: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One job's own inputs."""

    input_payload: Mapping[str, Any] = field(default_factory=dict)
    input_file_id: str | None = None
    video_id: str | None = None
    label: str | None = None
    # only from this machine's own user
    output_folder: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """What a user submits: an effect, or a workflow of the user's own, and the inputs for it."""

    tenant_id: str
    user_id: str
    idempotency_key: str
    effect_id: int | None = None
    workflow_slug: str | None = None
    item: Item = field(default_factory=Item)
    priority: int = 0
    delay_seconds: float = 0.0
    webhook_url: str | None = None
    # Without one, the server's.
    stage: Stage | None = None

    def digest(self) -> str:
        return digest(
            {
                "effect_id": self.effect_id,
                "workflow_slug": self.workflow_slug,
                "input_payload": dict(self.item.input_payload),
                "input_file_id": self.item.input_file_id,
                "video_id": self.item.video_id,
                "label": self.item.label,
                "output_folder": self.item.output_folder,
                "priority": self.priority,
                "delay_seconds": self.delay_seconds,
                "webhook_url": self.webhook_url,
                "stage": self.stage,
            }
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """A job, and whether it was made just now or by an earlier request for the same."""

    job: Job
    is_new: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What is to be run, and what it costs."""

    workflow: Workflow
    effect: Effect | None
    properties: Sequence[Property]
    hasher: WorkflowHasher

    @property
    def cost(self) -> int:
        return self.effect.credits_cost if self.effect else 0

    @property
    def overrides(self) -> Mapping[str, Any]:
        return self.effect.property_overrides if self.effect else {}

    @property
    def asset_hashes(self) -> Mapping[str, str]:
        return self.effect.asset_hashes if self.effect else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Media:
    """The files and videos of the user's own that a submission names."""

    files: Mapping[str, StoredFile]
    videos: Mapping[str, Video]


# Raises `InvalidInput` for values that cannot be accepted.
Check = Callable[[Mapping[str, Any]], None]


class Submit:
    def __init__(
        self,
        databases: Databases,
        recovery: OutboxRecovery,
        graphs: Graphs,
        *,
        policy: Policy,
        checks: Mapping[WorkflowKind, Check],
    ) -> None:
        """`checks` know what this machine alone can tell of a kind of workflow."""
        self._databases = databases
        self._recovery = recovery
        self._graphs = graphs
        self._policy = policy
        self._checks = checks

    async def submit(self, request: JobRequest) -> Job:
        """Accept a job, once per idempotency key. When this returns, the job will end in exactly one terminal state."""
        return (await self.submit_once(request)).job

    async def submit_once(self, request: JobRequest) -> Submitted:
        """The same, and whether it is a new job."""
        check_texts(idempotency_key=request.idempotency_key, webhook_url=request.webhook_url)
        pool = await self._databases.pool_of(request.tenant_id)
        request_digest = request.digest()
        async with pool.read() as tx:
            known = await jobs.by_key(tx, request.tenant_id, request.idempotency_key)
        if known is not None:
            return Submitted(job=await self._repeated(pool, known, request_digest), is_new=False)
        target = await self.target(request.tenant_id, effect_id=request.effect_id, workflow_slug=request.workflow_slug)
        found = await self.media(pool, request.tenant_id, [request.item], target)
        new = self.new_job(request, target, request.item, found, request_digest=request_digest)

        async def work(tx: Tx) -> tuple[Job, Submission | None]:
            await ledger.lock_wallet(tx, request.tenant_id)
            known = await jobs.by_key(tx, request.tenant_id, request.idempotency_key)
            if known is not None:
                return known, None
            await self.guard_concurrency(tx, request.tenant_id, request.user_id)
            made, submission = await self.write(tx, [new])
            return made[0], submission

        job, submission = await pool.run(Step.SUBMIT_JOB, work)
        if submission is None:
            return Submitted(job=await self._repeated(pool, job, request_digest), is_new=False)
        await self.enqueue(pool, [job], submission)
        return Submitted(job=job, is_new=True)

    async def retry(self, tenant_id: str, job_id: str, *, new_seeds: bool = False) -> Job:
        """A failed or canceled job again, as a new job with its own reservation; a job is retried at most once."""
        return (await self.retry_once(tenant_id, job_id, new_seeds=new_seeds)).job

    async def retry_once(self, tenant_id: str, job_id: str, *, new_seeds: bool = False) -> Submitted:
        """The same, and whether it was retried just now or before."""
        pool = await self._databases.pool_of(tenant_id)

        async def work(tx: Tx) -> tuple[Job, Submission | None]:
            await ledger.lock_wallet(tx, tenant_id)
            old = await jobs.get(tx, tenant_id, job_id)
            if old is None:
                raise NotFound(f"There is no job {job_id!r}.")
            if (known := await jobs.retry_of(tx, job_id)) is not None:
                return known, None
            if old.status not in {JobStatus.FAILED, JobStatus.CANCELED}:
                raise Conflict(f"Only a failed or canceled job can be retried; this one is {old.status}.")
            await self.guard_concurrency(tx, tenant_id, old.user_id, batch_id=old.batch_id)
            made, submission = await self.write_retries(tx, [old], new_seeds=new_seeds)
            return made[0], submission

        job, submission = await pool.run(Step.SUBMIT_JOB, work)
        if submission is None:
            await self._recovery.ensure_dispatch(pool.name, job)
        else:
            await self.enqueue(pool, [job], submission)
        return Submitted(job=job, is_new=submission is not None)

    async def target(self, tenant_id: str, *, effect_id: int | None, workflow_slug: str | None) -> Target:
        """The effect's workflow, or a workflow of the tenant's own."""
        if (effect_id is None) == (workflow_slug is None):
            raise InvalidInput(errors={"effect_id": "Name an effect or a workflow of your own, one of the two."})
        async with self._databases.central.read() as tx:
            effect = await catalogue.effect(tx, id_=effect_id) if effect_id is not None else None
            if effect_id is not None and (effect is None or not effect.is_active):
                raise NotFound(f"There is no effect {effect_id}.")
            id_ = effect.workflow_id if effect else None
            workflow = await catalogue.workflow(tx, id_=id_, slug=workflow_slug)
        # A workflow without an effect has no price, so it must be the tenant's own.
        if workflow is None or (effect is None and workflow.tenant_id != tenant_id):
            raise NotFound(f"There is no workflow {workflow_slug!r}.")
        if not workflow.is_active:
            raise Conflict("This effect cannot be used at the moment: its workflow is switched off.")
        properties = [Property.from_json(each) for each in workflow.properties]
        graph = await self._graphs.get(workflow.graph_path)
        return Target(
            workflow=workflow,
            effect=effect,
            properties=properties,
            hasher=WorkflowHasher(graph, [each.placeholder for each in properties]),
        )

    async def media(self, pool: Database, tenant_id: str, items: Sequence[Item], target: Target) -> Media:
        """Look up, in the tenant's own rows, every file and video that the items name."""
        assets = {each.key for each in target.properties if each.is_asset}
        named = {each.input_file_id for each in items if each.input_file_id is not None}
        for each in items:
            named.update(v for k, v in each.input_payload.items() if k in assets and isinstance(v, str))
        named = {each for each in named if is_storable(each)}
        of_videos = {each.video_id for each in items if each.video_id is not None and is_storable(each.video_id)}
        async with pool.read() as tx:
            videos = await media.videos_of(tx, tenant_id, of_videos)
            named.update(each.original_file_id for each in videos.values() if each.original_file_id is not None)
            files = await media.stored_files(tx, tenant_id, named)
        return Media(files=files, videos=videos)

    def new_job(
        self,
        request: JobRequest,
        target: Target,
        item: Item,
        found: Media,
        *,
        request_digest: str,
        batch_id: str | None = None,
        item_no: int = 0,
    ) -> NewJob:
        """Resolve the properties and fix what the job will run, so that no later change of the catalogue matters."""
        values = resolve(target.properties, overrides=target.overrides, user_input=item.input_payload)
        _refuse_placeholders(target.properties, values)
        if (check := self._checks.get(WorkflowKind(target.workflow.kind))) is not None:
            check({each.property.key: each.value for each in values})
        primary = _primary(item, found)
        snapshot = Snapshot(
            graph_path=target.workflow.graph_path,
            values=text_values(values),
            assets=asset_list(
                values,
                properties=target.properties,
                primary=primary,
                files=found.files,
                catalogue_disk=self._policy.catalogue_disk,
                catalogue_hashes=target.asset_hashes,
            ),
            output_node_id=target.workflow.output_node_id,
            output_extension=target.workflow.output_extension,
            output_mime_type=target.workflow.output_mime_type,
            seeds={each.placeholder: each.seed_limit for each in target.properties if each.is_seed},
            output_folder=item.output_folder,
        )
        return NewJob(
            id=new_id(),
            tenant_id=request.tenant_id,
            user_id=request.user_id,
            effect_id=target.effect.id if target.effect else None,
            workflow_id=target.workflow.id,
            workflow_hash=target.hasher.hash(snapshot.values),
            provider=target.workflow.provider,
            stage=request.stage or self._policy.stage,
            priority=self.clamp(request.priority),
            max_attempts=self._policy.max_attempts,
            idempotency_key=request.idempotency_key,
            request_digest=request_digest,
            input_payload=snapshot.to_json(),
            reserved_tokens=target.cost,
            delay_seconds=max(0.0, request.delay_seconds),
            batch_id=batch_id,
            item_no=item_no,
            label=item.label,
            video_id=item.video_id,
            input_file_id=primary.id if primary else None,
            webhook_url=request.webhook_url,
        )

    def clamp(self, priority: int) -> int:
        return max(self._policy.priority_min, min(self._policy.priority_max, priority))

    async def guard_concurrency(self, tx: Tx, tenant_id: str, user_id: str, *, batch_id: str | None = None) -> None:
        """Counted under the wallet's lock, so that two submissions cannot both be the last one allowed."""
        if await jobs.count_active(tx, tenant_id, user_id, beside=batch_id) >= self._policy.max_active_jobs:
            raise TooManyActiveJobs(limit=self._policy.max_active_jobs)

    async def write(self, tx: Tx, new: Sequence[NewJob]) -> tuple[list[Job], Submission]:
        """The jobs, their reservations and the outbox row that leads them to the queue."""
        await reserve(tx, new[0].tenant_id, {each.id: each.reserved_tokens for each in new})
        made = await jobs.create(tx, new)
        if paths := {asset["path"] for each in new for asset in each.input_payload["assets"]}:
            await media.use_files(tx, new[0].tenant_id, paths)
        videos = {each.video_id: each.id for each in new if each.video_id is not None}
        if videos:
            await media.attach_job(tx, videos)
        return made, await outbox.submit(tx, [each.id for each in new])

    async def write_retries(
        self, tx: Tx, old: Sequence[Job], *, new_seeds: bool = False
    ) -> tuple[list[Job], Submission]:
        payloads = await self.payloads_again(tx, old, new_seeds=new_seeds)
        return await self.write(tx, [_retry_of(each, payloads[each.id]) for each in old])

    async def payloads_again(self, tx: Tx, old: Sequence[Job], *, new_seeds: bool) -> Mapping[str, Mapping[str, Any]]:
        """What these jobs ran, to be run again; `Conflict` when an input is no longer there."""
        payloads = await jobs.payloads(tx, [each.id for each in old])
        _refuse_without_input(old, payloads)
        if not new_seeds:
            return payloads
        return {
            job_id: Snapshot.from_json(payload).with_seeds(_new_seed).to_json() for job_id, payload in payloads.items()
        }

    async def enqueue(self, pool: Database, made: Sequence[Job], submission: Submission) -> None:
        """Bring the jobs to the queue. If that fails, they are accepted all the same and the relay does it."""
        try:
            await self._recovery.enqueue(pool.name, made)
            await self._recovery.forget(pool.name, [submission.id])
        except Exception:
            log.warning("submit.left_to_relay", pool=pool.name, submission=submission.id, exc_info=True)

    async def _repeated(self, pool: Database, job: Job, request_digest: str) -> Job:
        if job.request_digest != request_digest:
            raise IdempotencyConflict
        if job.status in {JobStatus.QUEUED, JobStatus.PROCESSING}:
            await self._recovery.ensure_dispatch(pool.name, job)
        return job


def chosen_stage(user: User, stage: Stage | None) -> Stage | None:
    """Only an administrator may name another stage than the server's."""
    if stage is not None and not user.is_admin:
        raise Forbidden("Only an administrator may choose the stage.")
    return stage


def check_texts(*, idempotency_key: str, **others: str | None) -> None:
    """Refuse a key that is empty or of the kind that the engine makes for itself, and texts that cannot be kept."""
    errors = {
        name: "This contains a character that cannot be stored."
        for name, text in {"idempotency_key": idempotency_key, **others}.items()
        if text is not None and not is_storable(text)
    }
    if (url := others.get("webhook_url")) is not None and (problem := url_problem(url)) is not None:
        errors.setdefault("webhook_url", problem)
    if not idempotency_key:
        errors["idempotency_key"] = "This is required."
    elif idempotency_key.startswith(RESERVED_KEYS):
        errors["idempotency_key"] = f"A key must not begin with {' or '.join(RESERVED_KEYS)}."
    if errors:
        raise InvalidInput(errors=errors)


def _primary(item: Item, found: Media) -> StoredFile | None:
    if item.video_id is not None:
        video = found.videos.get(item.video_id)
        file = found.files.get(video.original_file_id or "") if video else None
        if file is None:
            raise InvalidInput(errors={"video_id": "There is no such video of yours."})
        return file
    if item.input_file_id is not None:
        if item.input_file_id not in found.files:
            raise InvalidInput(errors={"input_file_id": "There is no such file of yours."})
        return found.files[item.input_file_id]
    return None


def _refuse_placeholders(properties: Sequence[Property], values: Sequence[Value]) -> None:
    """Workers put file names where the placeholders of assets are; a text must not smuggle one in."""
    assets = [each.placeholder for each in properties if each.is_asset]
    errors = {
        value.property.key: "This text contains a placeholder of the workflow."
        for value in values
        if value.from_user and isinstance(value.value, str) and not value.property.is_asset
        if any(placeholder in value.value for placeholder in assets)
    }
    if errors:
        raise InvalidInput(errors=errors)


def _refuse_without_input(old: Sequence[Job], payloads: Mapping[str, Any]) -> None:
    """A job whose input was deleted since cannot be run again."""
    for each in old:
        primary = Snapshot.from_json(payloads[each.id]).primary_input
        # a file of the user's has its type beside it; one of the catalogue's is never deleted
        if primary is not None and primary.mime_type is not None and each.input_file_id is None:
            raise Conflict("The input of this job was deleted, so it cannot be retried.")


def _retry_of(old: Job, payload: Mapping[str, Any]) -> NewJob:
    return copy_of(old, payload, idempotency_key=f"retry:{old.id}", retry_of=old.id)


def copy_of(old: Job, payload: Mapping[str, Any], *, idempotency_key: str, **changes: Any) -> NewJob:
    """A new job that runs what another one ran."""
    copied = {
        name: getattr(old, name)
        for name in NewJob.__dataclass_fields__
        if name not in {"id", "idempotency_key", "input_payload", "delay_seconds", "retry_of"}
    }
    return NewJob(**{**copied, **changes}, id=new_id(), idempotency_key=idempotency_key, input_payload=payload)


def _new_seed(largest: int) -> int:
    return secrets.randbelow(largest + 1)
