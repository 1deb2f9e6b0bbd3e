"""Estimate a batch before it is added: number of jobs, duration and warnings."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import Request

from comfyrelay.desk.routes.batches import BatchPlan, plan_of
from comfyrelay.desk.state import DeskStateOf
from comfyrelay.domain.image_shapes import InputWarning, Shape, shape_warnings
from comfyrelay.domain.payloads import StoredFile
from comfyrelay.domain.properties import Role
from comfyrelay.domain.records.accounts import User
from comfyrelay.media.image_headers import read_image_header
from comfyrelay.media_types import OCTET_STREAM, guess_media_type
from comfyrelay.protocol import desk as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.requirements import Missing
from comfyrelay.server.http.auth import CurrentUser, authenticate_user
from comfyrelay.server.http.bodies import large_body
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router
from comfyrelay.services.jobs.views.estimate import EstimateRequest
from comfyrelay.storage.local import LocalObjects

router = Router(prefix="/api/desk", tags=["desk"])
# Only this many inputs are listed.
MAX_NAMED = 60
MAX_LABELS = 40
MAX_INSPECTED = 200
# Nearly all formats store the size within this many bytes.
HEAD_BYTES = 64 * 1024


@router.post("/batches/estimate", responses=error_responses(401, 403, 404, 409, 422, 503))
@large_body(authenticate_user)
async def estimate(
    body: wire.NewDeskBatch, request: Request, state: DeskStateOf, context: ContextOf, user: CurrentUser
) -> Answer[wire.Estimate]:
    """Estimate this batch without adding or copying anything. The request fails if the real request would fail."""
    plan = await plan_of(body, request, state, context, user)
    # Files in the input folder are not stored yet, so their paths are their names.
    files = {input_: str(input_) for input_ in plan.inputs}
    wanted = EstimateRequest(
        tenant_id=user.tenant_id,
        user_id=user.id,
        target=plan.target,
        items=plan.items(files),
        files={str(input_): _stored_file(input_) for input_ in plan.inputs if isinstance(input_, Path)},
        priority=body.priority,
        shows_workers=user.is_admin,
    )
    found = await context.engine.jobs.estimates.estimate(wanted)
    names = [input_.name if isinstance(input_, Path) else plan.names.get(input_, input_) for input_ in plan.inputs]
    expected, missing = found.forecast, found.missing
    return Answer(
        data=wire.Estimate.of(
            found,
            inputs=names[:MAX_NAMED],
            input_count=len(names),
            axes=[{"key": axis.key, "name": axis.name, "count": len(axis.values)} for axis in plan.expanded.axes],
            labels=[item.label for item in plan.expanded.items[:MAX_LABELS]],
            expected_seconds=expected.seconds if expected else None,
            fastest_seconds=expected.fastest if expected else None,
            slowest_seconds=expected.slowest if expected else None,
            missing=None if missing is None else Missing.of(missing, items=missing.to_json()),
            warnings=await _warnings(plan, context, user),
            remark=plan.preset.remark,
        )
    )


def _stored_file(file: Path) -> StoredFile:
    mime_type = guess_media_type(file.name) or OCTET_STREAM
    return StoredFile(id=str(file), disk="", path=str(file), mime_type=mime_type, name=file.name)


async def _warnings(plan: BatchPlan, context: Context, user: User) -> list[InputWarning]:
    if plan.is_script or not plan.inputs:
        return []
    inspected = plan.inputs[:MAX_INSPECTED]
    uploaded = [input_ for input_ in inspected if isinstance(input_, str)]
    places = {input_: input_.name for input_ in inspected if isinstance(input_, Path)}
    shapes: list[Shape] = []
    objects = context.engine.objects
    for id_, facts in (await context.engine.jobs.media.view_files(user.tenant_id, uploaded)).items():
        file = facts.file
        name = plan.names.get(id_) or "file"
        if file.width and file.height:
            shapes.append(Shape(name=name, width=file.width, height=file.height))
        elif isinstance(objects, LocalObjects) and (place := await objects.file_of(file.path)) is not None:
            places[place] = name
    shapes += await asyncio.to_thread(_shapes, places)
    return shape_warnings(shapes, wanted=_size(plan.expanded.items[0].payload, plan))


def _shapes(places: Mapping[Path, str]) -> Sequence[Shape]:
    found = []
    for place, name in places.items():
        try:
            with place.open("rb") as file:
                claim = read_image_header(file.read(HEAD_BYTES))
        except OSError:
            # Copying the file will report the error.
            continue
        if claim is not None:
            found.append(Shape(name=name, width=claim.width, height=claim.height))
    return found


def _size(payload: Mapping[str, Any], plan: BatchPlan) -> tuple[int, int] | None:
    """Return the size of the result, if the workflow fixes it."""
    sides = []
    for role in (Role.WIDTH, Role.HEIGHT):
        prop = next((candidate for candidate in plan.target.properties if candidate.role is role), None)
        value = None if prop is None else payload.get(prop.key, plan.target.overrides.get(prop.key, prop.default_value))
        if not isinstance(value, int) or value <= 0:
            return None
        sides.append(value)
    return sides[0], sides[1]
