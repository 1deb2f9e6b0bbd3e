"""Uploads and videos."""

from fastapi import Request

from comfyrelay.domain.uploads import AnnouncedUpload
from comfyrelay.protocol import uploads as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.protocol.user import Deleted
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.guests import is_guest
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Cursor, IdInPath, Limit, page_of, user_router
from comfyrelay.services.jobs.views.jobs import VideoView

router = user_router("/api/videos", "videos")


@router.post("/uploads", status_code=201, responses=error_responses(403, 404, 409, 413, 422))
async def begin_upload(
    body: wire.NewUpload, request: Request, context: ContextOf, user: CurrentUser
) -> Answer[wire.Upload]:
    """Request an upload URL for an image, video or audio file."""
    upload = await context.engine.jobs.uploads.create(user, AnnouncedUpload(**dict(body)), is_guest=is_guest(request))
    signed = upload.signed
    data = wire.Upload.of(upload, signed, upload_url=signed.url, upload_headers=signed.headers)
    return Answer(data=data, message="Send the bytes with PUT.")


@router.get("/uploads", responses=error_responses(422))
async def uploads(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: Cursor = None
) -> Answer[wire.UploadPage]:
    """List your uploads, newest first, with their total size and your limits."""
    page = await context.engine.jobs.uploads.page(user.tenant_id, before_id=cursor, limit=limit)
    usage, limits = await context.engine.jobs.uploads.usage(user.tenant_id)
    items = [wire.StoredUpload.of(file, is_used=is_used) for file, is_used in page.items]
    stored = wire.StoredUploads.of(usage, limits)
    return Answer(data=wire.UploadPage(items=items, next_cursor=page.next_cursor, stored=stored))


@router.delete("/uploads/{file_id}", responses=error_responses(403, 404, 409, 422))
async def delete_upload(file_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[Deleted]:
    """Delete an upload. 409 while a video or an unfinished job needs it."""
    await context.engine.jobs.removal.remove_upload(user.tenant_id, file_id)
    return Answer(data=Deleted(id=file_id), message="Deleted.")


@router.get("/uploads/{file_id}", responses=error_responses(404, 422))
async def uploaded(file_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.FileDetails]:
    """Get an uploaded file with a temporary URL."""
    found = await context.engine.jobs.views.file(user.tenant_id, file_id)
    return Answer(data=wire.FileDetails.of(found, found.file))


@router.post("", status_code=201, responses=error_responses(403, 404, 422))
async def create_video(body: wire.NewVideo, context: ContextOf, user: CurrentUser) -> Answer[wire.Video]:
    """Create a video from an uploaded file."""
    made = await context.engine.jobs.uploads.create_video(
        user, original_file_id=body.original_file_id, title=body.title, effect_id=body.effect_id
    )
    return Answer(data=_video(await context.engine.jobs.views.video(user.tenant_id, made.id)), message="Created.")


@router.get("", responses=error_responses(422))
async def videos(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: Cursor = None
) -> Answer[Page[wire.Video]]:
    """List your videos, newest first."""
    page = await context.engine.jobs.views.videos(user.tenant_id, before_id=cursor, limit=limit)
    return page_of(page, _video)


@router.get("/{video_id}", responses=error_responses(404, 422))
async def video(video_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Video]:
    """Get a video with temporary URLs of its files."""
    return Answer(data=_video(await context.engine.jobs.views.video(user.tenant_id, video_id)))


@router.delete("/{video_id}", responses=error_responses(403, 404, 409, 422))
async def delete_video(video_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[Deleted]:
    """Delete a video, its file and its outputs. 409 while a job needs them."""
    await context.engine.jobs.removal.remove_video(user.tenant_id, video_id)
    return Answer(data=Deleted(id=video_id), message="Deleted.")


def _video(view: VideoView) -> wire.Video:
    return wire.Video.of(view, view.video)
