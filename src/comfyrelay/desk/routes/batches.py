"""Create batches from folders and lists."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request, status

from comfyrelay.desk.batches.expand import Expansion, SeedPlan
from comfyrelay.desk.batches.folders import inputs_in
from comfyrelay.desk.batches.output_copies import folder_name
from comfyrelay.desk.batches.planning import BatchLists, plan_items
from comfyrelay.desk.notifications.notifier import why_unusable, without_secrets
from comfyrelay.desk.state import DeskState, DeskStateOf
from comfyrelay.domain.ids import digest, new_id
from comfyrelay.domain.properties import AppliedPreset, apply_preset
from comfyrelay.domain.queue.states import WorkflowKind
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import InvalidInput
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.desk import NewDeskBatch
from comfyrelay.protocol.jobs import Batch
from comfyrelay.server.http.auth import CurrentUser, authenticate_user
from comfyrelay.server.http.bodies import large_body
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.guests import is_guest, refuse_urls_of_guest
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router
from comfyrelay.server.user.batches import batch_body
from comfyrelay.services.jobs.batches import BatchRequest
from comfyrelay.services.jobs.submission.requests import ItemRequest
from comfyrelay.services.jobs.submission.resolve import Target

router = Router(prefix="/api/desk", tags=["desk"])
# The folder of wildcard files, inside the data folder.
WILDCARDS = "wildcards"


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """A planned batch. `inputs` are files of the input folder or ids of uploads; for a script, folders."""

    effect_id: int | None
    target: Target
    inputs: Sequence[Path | str]
    expanded: Expansion
    preset: AppliedPreset
    # The names of uploaded files by id.
    names: Mapping[str, str]

    @property
    def is_script(self) -> bool:
        return self.target.workflow.kind == WorkflowKind.SCRIPT

    def items(self, files: Mapping[Path | str, str], *, folder: str | None = None) -> list[ItemRequest]:
        """Return the items to submit. `files` maps inputs to file ids."""
        requests = []
        for item in self.expanded.items:
            payload, label = item.payload, item.label
            if self.is_script and item.input is not None:
                payload = {**payload, "input_subdir": item.input}
            file_id = files.get(item.input) if item.input is not None else None
            requests.append(
                ItemRequest(input_payload=payload, input_file_id=file_id, label=label or None, output_folder=folder)
            )
        return requests


@router.post("/batches", status_code=status.HTTP_201_CREATED, responses=error_responses(401, 403, 404, 409, 422, 503))
@large_body(authenticate_user)
async def add_batch(
    body: NewDeskBatch, request: Request, state: DeskStateOf, context: ContextOf, user: CurrentUser
) -> Answer[Batch]:
    """Create a batch of all inputs × prompts × negative prompts × sweep axes × tries, or of value n of each list."""
    refuse_urls_of_guest(request, *body.notify_urls)
    engine = context.engine
    # Digest the request rather than the items, because seeds and copies differ each time.
    request_digest = digest(body.model_dump(mode="json", exclude={"idempotency_key", "wait_for_missing", "reuse"}))
    if body.idempotency_key is not None:
        known = await engine.jobs.batches.find_known(
            user.tenant_id, idempotency_key=body.idempotency_key, request_digest=request_digest
        )
        if known is not None:
            return Answer(data=batch_body(known), message="Already submitted.")
    plan = await plan_of(body, request, state, context, user)
    folder = folder_name(body.output_folder) if body.output_folder else None
    await asyncio.to_thread(_check_urls, body.notify_urls)
    files = {} if plan.is_script else await _stored_files(plan.inputs, request, context, user)
    batch, _ = await engine.jobs.batches.submit_once(
        BatchRequest(
            tenant_id=user.tenant_id,
            user_id=user.id,
            idempotency_key=body.idempotency_key or new_id(),
            items=plan.items(files, folder=folder),
            axes=plan.expanded.axes,
            label=body.label,
            effect_id=plan.effect_id,
            workflow_slug=body.workflow_slug,
            priority=body.priority,
            notify_urls=body.notify_urls,
            wait_for_missing=body.wait_for_missing,
            reuse=body.reuse,
            shows_workers=user.is_admin,
            is_guest=is_guest(request),
            request_digest=request_digest,
        )
    )
    return Answer(data=batch_body(batch), message=f"Submitted. {plan.preset.remark}".strip())


async def plan_of(body: NewDeskBatch, request: Request, state: DeskState, context: Context, user: User) -> BatchPlan:
    engine = context.engine
    effect_id = (await engine.catalogue.effects.get(body.effect_slug)).effect.id if body.effect_slug else None
    target = await engine.jobs.resolve.find_target(
        user.tenant_id, effect_id=effect_id, workflow_slug=body.workflow_slug, is_guest=is_guest(request)
    )
    is_script = target.workflow.kind == WorkflowKind.SCRIPT
    if is_script and body.input_file_ids:
        raise InvalidInput(errors={"input_file_ids": "A script takes folders: set them in input_subdir."})
    # A script reads its folder itself.
    inputs = list(body.folders) if is_script else await _inputs(body, state)
    presets = engine.catalogue.presets
    values = (await presets.find(user.tenant_id, body.preset)).settings if body.preset else {}
    preset = apply_preset(values, target.properties)
    base = {**preset.values, **body.values}
    names = await engine.jobs.uploads.file_names(user, body.input_file_ids) if body.input_file_ids else {}
    lists = BatchLists(
        inputs=inputs,
        prompts=body.prompts,
        negatives=body.negative_prompts,
        sweep=body.sweep,
        tries=body.tries,
        seeds=None if body.seeds is None else SeedPlan(mode=body.seeds.mode, start=body.seeds.start),
        mode=body.mode,
        wildcards=body.wildcards,
        names=names,
    )
    # In a thread, because planning may read files and expands up to 10,000 items.
    expanded = await asyncio.to_thread(
        plan_items,
        lists,
        target.properties,
        base=base,
        overrides=target.overrides,
        wildcards_folder=state.data_dir / WILDCARDS,
    )
    return BatchPlan(effect_id=effect_id, target=target, inputs=inputs, expanded=expanded, preset=preset, names=names)


def _check_urls(urls: Sequence[str]) -> None:
    """Check notification URLs now, not when the batch is done."""
    errors = {
        f"notify_urls.{number}": f"{without_secrets(url)}: {problem}"
        for number, url in enumerate(urls)
        if (problem := why_unusable(url)) is not None
    }
    if errors:
        raise InvalidInput(errors=errors)


async def _inputs(body: NewDeskBatch, state: DeskState) -> list[Path | str]:
    if body.folders and body.input_file_ids:
        raise InvalidInput(errors={"input_subdir": "Name folders or files, not both."})
    found: list[Path | str] = [*body.input_file_ids]
    for folder in body.folders:
        media = await asyncio.to_thread(inputs_in, state.input_folder, folder)
        if not media:
            where = repr(folder) if folder else "the input folder itself. Choose a folder in it"
            raise InvalidInput(errors={"input_subdir": f"There are no images, videos or audio files in {where}."})
        found += media
    return found


async def _stored_files(
    inputs: Sequence[Path | str], request: Request, context: Context, user: User
) -> dict[Path | str, str]:
    """Copy input files to object storage, because a user may change them while the batch waits."""
    paths = [input_ for input_ in inputs if isinstance(input_, Path)]
    copied = await context.engine.jobs.uploads.copy_local_files(user, paths, is_guest=is_guest(request))
    return {input_: input_ if isinstance(input_, str) else copied[input_] for input_ in inputs}
