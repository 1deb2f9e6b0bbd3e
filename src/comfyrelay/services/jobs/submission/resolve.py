"""Resolve requests into jobs that can be accepted. Writes nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from comfyrelay.comfyui.graphs.dynamic_prompts import draw_prompt
from comfyrelay.comfyui.graphs.graph import Graph, input_texts
from comfyrelay.comfyui.graphs.placeholders import placeholders_of
from comfyrelay.domain.ids import new_id
from comfyrelay.domain.payloads import JobPayload, StoredFile, asset_list, fingerprint, text_values
from comfyrelay.domain.prices.effects import needs_input, price_of
from comfyrelay.domain.prices.limits import InputFacts, check_inputs
from comfyrelay.domain.prices.metered import MeteredPrice
from comfyrelay.domain.properties import Property, PropertyType, Role, Value, defaults, resolve
from comfyrelay.domain.queue.customer_texts import NOT_AVAILABLE
from comfyrelay.domain.queue.states import WorkflowKind
from comfyrelay.domain.records.catalogue import EffectRecord, WorkflowRecord
from comfyrelay.domain.records.jobs import NewJobRecord, VideoRecord
from comfyrelay.errors import Conflict, InvalidInput, MissingOnWorkers, NotFound, TooLarge
from comfyrelay.services.accounts.own_workflows import OwnWorkflowAccess
from comfyrelay.services.catalogue.availability import Availability, MissingRequirements
from comfyrelay.services.catalogue.graphs import MAX_CACHED_GRAPHS, Graphs, WorkflowHasher
from comfyrelay.services.context import DISK, ServiceContext
from comfyrelay.services.jobs.cooperative import SMALL_BYTES, FairThread
from comfyrelay.services.jobs.submission.guest_inputs import GuestInputs
from comfyrelay.services.jobs.submission.measured_inputs import MeasuredInputs
from comfyrelay.services.jobs.submission.own_inputs import OwnInputs
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest
from comfyrelay.services.jobs.submission.reuse import Reuse
from comfyrelay.services.jobs.submission.seeds import draw_seeds
from comfyrelay.services.jobs.submission.upload_checks import check_uploads
from comfyrelay.settings import Settings
from comfyrelay.store.central import catalogue
from comfyrelay.store.database import Database
from comfyrelay.store.tenant.library import media
from comfyrelay.text import excerpt, is_storable

# ComfyUI accepts larger requests. Limited because a prompt may occur in a graph thousands of times.
MAX_FILLED_BYTES = 64 * 1024 * 1024
MAX_LABEL_PART_LENGTH = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A workflow to run, its effect, if any, and facts about its graph."""

    workflow: WorkflowRecord
    effect: EffectRecord | None
    properties: Sequence[Property]
    hasher: WorkflowHasher
    # Set for a tenant's own graph, if a policy applies.
    own_inputs: OwnInputs | None
    # Set for the request of a guest.
    guest_inputs: GuestInputs | None
    # The number of nodes or of filled-in texts, whichever is larger.
    size: int
    graph_bytes: int
    # How often each placeholder occurs in the graph.
    occurrences: Mapping[str, int]
    # Set for a tenant's own workflow, if its runs have a price.
    metered: MeteredPrice | None = None

    @property
    def name(self) -> str:
        return self.effect.name if self.effect else self.workflow.name

    @property
    def max_run_seconds(self) -> int | None:
        if self.effect is not None:
            return self.effect.max_run_seconds
        return self.metered.max_seconds if self.metered is not None else None

    @property
    def overrides(self) -> Mapping[str, Any]:
        return self.effect.property_overrides if self.effect else {}

    @property
    def asset_hashes(self) -> Mapping[str, str]:
        return self.effect.asset_hashes if self.effect else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedMedia:
    """The user's files and videos that a request names."""

    files: Mapping[str, StoredFile]
    videos: Mapping[str, VideoRecord]
    # By file id, for jobs of effects.
    measured: Mapping[str, InputFacts] = field(default_factory=dict)


class Resolver:
    def __init__(
        self,
        context: ServiceContext,
        graphs: Graphs,
        availability: Availability,
        reuse: Reuse,
        *,
        own_access: OwnWorkflowAccess,
        input_facts: MeasuredInputs,
    ) -> None:
        self._settings = context.settings
        self._databases = context.databases
        self._objects = context.objects
        self._checks = context.hooks.checks
        self._policy = context.graph_policy
        self._graphs = graphs
        self._availability = availability
        self._reuse = reuse
        self._own_access = own_access
        self._input_facts = input_facts
        self._thread = FairThread()
        # Graphs of tenants that passed the policy, by path and file placeholders. Stored graphs never change.
        self._passed: dict[tuple[str, frozenset[str]], None] = {}

    async def find_target(
        self,
        tenant_id: str,
        *,
        effect_id: int | None,
        workflow_slug: str | None,
        is_test: bool = False,
        is_guest: bool = False,
        loaded: WorkflowRecord | None = None,
    ) -> Target:
        """Find an effect's workflow or a workflow of the tenant. For a test run, also find workflows of the
        catalogue. A workflow that is `loaded` is not read again."""
        if (effect_id is None) == (workflow_slug is None):
            raise InvalidInput(errors={"effect_id": "Name either an effect or one of your workflows."})
        effect: EffectRecord | None = None
        workflow = loaded
        if workflow is None:
            async with self._databases.central.read() as tx:
                if effect_id is not None:
                    effect, workflow = await catalogue.effect_with_workflow(tx, effect_id)
                else:
                    workflow = await catalogue.workflow(tx, slug=workflow_slug)
        if effect_id is not None and (effect is None or not effect.is_active):
            raise NotFound(f"There is no effect {effect_id}.")
        # A workflow of the catalogue has a price only as an effect.
        may_run = effect is not None or (workflow is not None and workflow.tenant_id == tenant_id)
        if workflow is None or not (may_run or (is_test and workflow.tenant_id is None)):
            raise NotFound(f"There is no workflow {workflow_slug!r}.")
        is_own = effect is None and not is_test
        if is_own:
            await self._own_access.require(tenant_id)
        if not workflow.is_active:
            raise Conflict(NOT_AVAILABLE if effect is not None else f"The workflow {workflow.slug!r} is disabled.")
        if (pending := workflow.waits_for) is not None:
            if pending.problem is not None:
                raise Conflict(pending.text if effect is None else NOT_AVAILABLE)
            raise MissingOnWorkers(pending.text, missing=pending.missing, is_of_effect=effect is not None)
        properties = workflow.parsed_properties
        graph, graph_bytes = await self._graphs.get_stored(workflow.graph_path)

        def build_target(_number: int) -> Target:
            hasher = WorkflowHasher(graph, [property_.placeholder for property_ in properties])
            return Target(
                workflow=workflow,
                effect=effect,
                properties=properties,
                hasher=hasher,
                own_inputs=self._own_inputs(workflow, graph, properties) if workflow.tenant_id else None,
                # A desk checks the values of its script itself.
                guest_inputs=GuestInputs(self._policy, graph, properties)
                if is_guest and workflow.kind == WorkflowKind.GRAPH
                else None,
                size=max(len(graph), hasher.filled),
                graph_bytes=graph_bytes,
                occurrences=_occurrences(graph, properties),
                metered=self._own_access.price if is_own else None,
            )

        [target] = await self._thread.map_range(build_target, count=1, size=graph_bytes)
        return target

    def _own_inputs(self, workflow: WorkflowRecord, graph: Graph, properties: Sequence[Property]) -> OwnInputs | None:
        """Check a tenant's graph again, because the policy may have changed since the upload."""
        if self._policy.mode == "off" or workflow.kind != WorkflowKind.GRAPH:
            return None
        files = frozenset(_files(properties))
        if (workflow.graph_path, files) not in self._passed:
            self._policy.check(graph, own=files)
            if len(self._passed) >= MAX_CACHED_GRAPHS:
                del self._passed[next(iter(self._passed))]
            self._passed[workflow.graph_path, files] = None
        texts = [property_.placeholder for property_ in properties if not property_.is_asset]
        return OwnInputs(self._policy, graph, texts=texts, files=files)

    async def load_media(
        self,
        shard: Database,
        tenant_id: str,
        items: Sequence[ItemRequest],
        target: Target,
        *,
        hash_content: bool = False,
    ) -> NamedMedia:
        """Look up the tenant's files and videos that the items name.

        With `hash_content`, files without a known hash are hashed, because equal jobs are recognised by content.
        """
        assets = {property_.key for property_ in target.properties if property_.is_asset}
        file_ids = {item.input_file_id for item in items if item.input_file_id is not None}
        for item in items:
            file_ids.update(v for k, v in item.input_payload.items() if k in assets and isinstance(v, str))
        file_ids = {id_ for id_ in file_ids if is_storable(id_)}
        video_ids = {item.video_id for item in items if item.video_id is not None and is_storable(item.video_id)}
        if not file_ids and not video_ids:
            return NamedMedia(files={}, videos={})
        async with shard.read() as tx:
            videos = await media.videos_of(tx, tenant_id, video_ids)
            file_ids.update(video.original_file_id for video in videos.values() if video.original_file_id is not None)
            files = await media.stored_files(tx, tenant_id, file_ids)
        await check_uploads(self._objects, files.values(), max_pixels=self._settings.probe_max_pixels)
        return NamedMedia(
            files=await self._reuse.hash_files(files) if hash_content else files,
            videos=videos,
            measured=await self._input_facts.of(files.values(), target.effect, target.properties)
            if target.effect is not None
            else {},
        )

    async def resolve_job(
        self, shard: Database, request: JobRequest, *, request_digest: str, workflow: WorkflowRecord | None = None
    ) -> NewJobRecord:
        target = await self.find_target(
            request.tenant_id,
            effect_id=request.effect_id,
            workflow_slug=request.workflow_slug,
            is_test=request.is_test,
            is_guest=request.is_guest,
            loaded=workflow,
        )
        found = await self.load_media(shard, request.tenant_id, [request.item], target, hash_content=request.reuse)
        [new] = await self.resolve_jobs([request], target, found, request_digest=request_digest)
        return new

    async def find_prices(self, shard: Database, requests: Sequence[JobRequest]) -> list[int]:
        """Return the tokens that each job of a batch, or a single job, would reserve. Inputs that do not change the
        price may be missing."""
        first = requests[0]
        target = await self.find_target(first.tenant_id, effect_id=first.effect_id, workflow_slug=first.workflow_slug)
        if len(requests) > 1:
            self.check_batch_size(target, len(requests))
        if target.effect is not None:
            target = replace(target, properties=_required_for_price(target.effect, target.properties))
        found = await self.load_media(shard, first.tenant_id, [request.item for request in requests], target)
        jobs = await self.build_jobs(requests, target, found, request_digest="")
        return [job.reserved_tokens for job in jobs]

    def check_batch_size(self, target: Target, count: int) -> None:
        """Raise `TooLarge` before the expensive part, which walks the graph once per item."""
        max_nodes = self._settings.max_batch_nodes
        if count * target.size <= max_nodes:
            return
        most = max_nodes // target.size
        if target.effect is not None:
            raise TooLarge(f"A batch of this effect has at most {most} items. Send several batches.")
        raise TooLarge(
            f"A batch has at most {max_nodes} nodes or filled-in inputs (COMFYRELAY_MAX_BATCH_NODES), which allows "
            f"{most} items with this graph. Send several batches."
        )

    async def resolve_jobs(
        self,
        requests: Sequence[JobRequest],
        target: Target,
        found: NamedMedia,
        *,
        request_digest: str,
        batch_id: str | None = None,
    ) -> list[NewJobRecord]:
        """Build the jobs of a batch, or a single job. Refuses jobs that no worker can run, unless they may wait."""
        jobs = await self.build_jobs(requests, target, found, request_digest=request_digest, batch_id=batch_id)
        first = requests[0]
        await self._availability.require(
            target.workflow,
            _wanted(jobs),
            stage=jobs[0].stage,
            may_wait=first.wait_for_missing,
            shows_names=first.shows_workers,
            is_of_effect=target.effect is not None,
        )
        return jobs

    async def find_missing(
        self, jobs: Sequence[NewJobRecord], target: Target, *, shows_names: bool
    ) -> MissingRequirements | None:
        """Find requirements of these jobs that no worker meets."""
        return await self._availability.find_missing(
            target.workflow, _wanted(jobs), stage=jobs[0].stage, shows_names=shows_names
        )

    async def build_jobs(
        self,
        requests: Sequence[JobRequest],
        target: Target,
        found: NamedMedia,
        *,
        request_digest: str,
        batch_id: str | None = None,
    ) -> list[NewJobRecord]:
        """Like `resolve_jobs`, without the check of requirements."""

        def build(number: int) -> NewJobRecord:
            try:
                return self._build_job(
                    requests[number], target, found, request_digest=request_digest, batch_id=batch_id, item_no=number
                )
            except InvalidInput as error:
                if batch_id is None:
                    raise
                fields = {f"items.{number}.{key}": text for key, text in error.errors.items()}
                raise InvalidInput(f"Item {number} is not valid.", errors=fields) from error

        texts = (text for request in requests for text in request.item.input_payload.values() if isinstance(text, str))
        size = len(requests) * target.graph_bytes + sum(map(len, texts))
        if target.workflow.kind == WorkflowKind.SCRIPT:
            # The check of a script reads the disk and may copy files, so it never runs inline.
            size = max(size, SMALL_BYTES + 1)
        return await self._thread.map_range(build, count=len(requests), size=size)

    def _build_job(
        self,
        request: JobRequest,
        target: Target,
        found: NamedMedia,
        *,
        request_digest: str,
        batch_id: str | None,
        item_no: int,
    ) -> NewJobRecord:
        item, settings = request.item, self._settings
        values, primary, payload = self._payload(item, target, found)
        return NewJobRecord(
            **request.job_fields(),
            id=new_id(),
            effect_id=target.effect.id if target.effect else None,
            workflow_id=target.workflow.id,
            workflow_hash=target.hasher.hash(payload.values),
            provider=target.workflow.provider,
            stage=request.stage or settings.stage,
            priority=clamp_priority(request.priority, settings),
            max_attempts=settings.max_attempts,
            request_digest=request_digest,
            input_payload=payload.to_json(),
            reserved_tokens=_price(target, values, found.measured.get(primary.id) if primary else None),
            millitokens_per_second=target.metered.millitokens_per_second if target.metered else None,
            delay_seconds=max(0.0, request.delay_seconds),
            batch_id=batch_id,
            item_no=item_no,
            label=item.label or _default_label(target.name if batch_id is None else None, primary, values),
            video_id=item.video_id,
            input_file_id=primary.id if primary else None,
            # Scripts are not reproducible.
            fingerprint=fingerprint(payload, found.files.values())
            if target.workflow.kind == WorkflowKind.GRAPH
            else None,
        )

    def _payload(
        self, item: ItemRequest, target: Target, found: NamedMedia
    ) -> tuple[Sequence[Value], StoredFile | None, JobPayload]:
        """Resolve the properties into a payload that later changes of the catalogue do not affect."""
        # Seeds are drawn before the job is written, so that all attempts and repeated requests use the same seeds.
        drawn = draw_seeds(target.properties, overrides=target.overrides, user_input=item.input_payload)
        overrides = {**target.overrides, **drawn}
        values = resolve(target.properties, overrides=overrides, user_input=item.input_payload)
        _refuse_placeholders(target.properties, values)
        if target.guest_inputs is not None:
            target.guest_inputs.check(values, defaults(target.properties, target.overrides))
        values = _draw_prompts(values)
        check = self._checks.get(WorkflowKind(target.workflow.kind))
        added = check({value.property.key: value.value for value in values}) if check is not None else {}
        primary = _primary(item, found)
        payload = JobPayload(
            graph_path=target.workflow.graph_path,
            values={
                **text_values(values),
                **{
                    property_.placeholder: added[property_.key]
                    for property_ in target.properties
                    if property_.key in added
                },
            },
            assets=asset_list(
                values,
                properties=target.properties,
                primary=primary,
                files=found.files,
                catalogue_disk=DISK,
                catalogue_hashes=target.asset_hashes,
            ),
            output_node_id=target.workflow.output_node_id,
            output_extension=target.workflow.output_extension,
            output_mime_type=target.workflow.output_mime_type,
            seeds={property_.placeholder: property_.seed_limit for property_ in target.properties if property_.is_seed},
            output_folder=item.output_folder,
            max_run_seconds=target.max_run_seconds,
            metadata=dict(item.metadata),
            via=item.via,
        )
        # After the assets, because the limits of an image do not fit a video.
        if target.effect is not None:
            check_inputs(values, target.properties, found.measured, primary_id=primary.id if primary else None)
        _check_filled(target, payload.values)
        if target.own_inputs is not None:
            target.own_inputs.check(payload.values)
        return values, primary, payload


def _required_for_price(effect: EffectRecord, properties: Sequence[Property]) -> list[Property]:
    """Require only numbers and, if the price depends on it, the primary input."""
    is_measured = needs_input(effect, properties)
    return [
        prop
        if prop.type is PropertyType.NUMBER or (prop.is_primary_input and is_measured)
        else replace(prop, required=False)
        for prop in properties
    ]


def _price(target: Target, values: Sequence[Value], measured: InputFacts | None) -> int:
    if target.effect is not None:
        return price_of(target.effect, values, measured or InputFacts())
    return target.metered.reserved_tokens if target.metered is not None else 0


def clamp_priority(priority: int, settings: Settings) -> int:
    return max(settings.user_priority_min, min(settings.user_priority_max, priority))


def _default_label(target_name: str | None, primary: StoredFile | None, values: Sequence[Value]) -> str | None:
    """Join target, input name and prompt. Items of a batch have no `target_name`, because the batch shows it."""
    source = PurePosixPath(primary.name).stem if primary is not None and primary.name else ""
    prompt = next((value.value for value in values if value.property.role is Role.PROMPT), "")
    parts = [excerpt(str(part), length=MAX_LABEL_PART_LENGTH) for part in (target_name or "", source, prompt)]
    return " · ".join(filter(None, parts)) or None


def _wanted(jobs: Sequence[NewJobRecord]) -> dict[str, Mapping[str, Any]]:
    """Return the values of one job per workflow hash."""
    wanted: dict[str, Mapping[str, Any]] = {}
    for job in jobs:
        wanted.setdefault(job.workflow_hash, job.input_payload["values"])
    return wanted


def _files(properties: Sequence[Property]) -> list[str]:
    return [property_.placeholder for property_ in properties if property_.is_asset]


def _primary(item: ItemRequest, found: NamedMedia) -> StoredFile | None:
    if item.video_id is not None:
        video = found.videos.get(item.video_id)
        file = found.files.get(video.original_file_id or "") if video else None
        if file is None:
            raise InvalidInput(errors={"video_id": "You have no such video."})
        return file
    if item.input_file_id is not None:
        if item.input_file_id not in found.files:
            raise InvalidInput(errors={"input_file_id": "You have no such file."})
        return found.files[item.input_file_id]
    return None


def _refuse_placeholders(properties: Sequence[Property], values: Sequence[Value]) -> None:
    """Refuse texts with a placeholder of an asset, because workers would replace it with a file name."""
    assets = placeholders_of(_files(properties))
    errors = {
        value.property.key: "This text contains a placeholder of the workflow."
        for value in values
        if value.from_user and isinstance(value.value, str) and not value.property.is_asset
        if assets.found_in([value.value])
    }
    if errors:
        raise InvalidInput(errors=errors)


def _draw_prompts(values: Sequence[Value]) -> list[Value]:
    """Draw the choices of dynamic prompts, as the editor does for each run."""
    drawn: list[Value] = []
    for value in values:
        try:
            text = draw_prompt(value.value) if value.property.is_dynamic_prompt else value.value
        except InvalidInput as error:
            raise InvalidInput(errors={value.property.key: error.detail}) from None
        drawn.append(replace(value, value=text))
    return drawn


def _occurrences(graph: Graph, properties: Sequence[Property]) -> dict[str, int]:
    wanted = placeholders_of(property_.placeholder for property_ in properties)
    return Counter(text[start:end] for text in input_texts(graph) for start, end in wanted.spans(text))


def _check_filled(target: Target, values: Mapping[str, Any]) -> None:
    """Check the size first, because filling in the values would allocate the memory."""
    filled = sum(target.occurrences.get(name, 0) * len(str(value)) for name, value in values.items())
    if target.graph_bytes + filled > MAX_FILLED_BYTES:
        raise TooLarge(f"With these values the graph would exceed {MAX_FILLED_BYTES // 2**20} MiB: use shorter texts.")
