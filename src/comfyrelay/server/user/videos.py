"""Uploads, and the videos made of them."""

from fastapi import APIRouter, status

from comfyrelay.domain.uploads import NewUpload
from comfyrelay.server.base.answers import Answer, Page
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.fields import Limit
from comfyrelay.server.base.problems import may_answer
from comfyrelay.server.user.job_models import FileBody, NewUploadBody, NewVideo, UploadBody, VideoBody
from comfyrelay.server.user.models import Cursor, Deleted, IdInPath
from comfyrelay.services.jobs.views import VideoView

__all__ = ["router"]

router = APIRouter(prefix="/api/videos", tags=["videos"])


@router.post("/uploads", status_code=status.HTTP_201_CREATED, responses=may_answer(401, 403, 404, 413, 422, 503))
async def begin_upload(body: NewUploadBody, context: ContextOf, user: CurrentUser) -> Answer[UploadBody]:
    """Announce a file, and hear where its bytes go. Images, videos and audio are taken."""
    new = NewUpload(
        mime_type=body.mime_type,
        size=body.size,
        original_filename=body.original_filename,
        effect_id=body.effect_id,
    )
    upload = await context.engine.jobs.uploads.begin(user, new)
    file = FileBody(
        id=upload.file.id,
        mime_type=upload.file.mime_type,
        size=upload.file.size,
        original_filename=upload.file.original_filename,
        created_at=upload.file.created_at,
    )
    data = UploadBody(
        file=file,
        upload_url=upload.signed.url,
        upload_headers=dict(upload.signed.headers),
        expires_at=upload.signed.expires_at,
    )
    return Answer(data=data, message="Send the bytes with PUT.")


@router.post("", status_code=status.HTTP_201_CREATED, responses=may_answer(401, 403, 404, 422, 503))
async def create_video(body: NewVideo, context: ContextOf, user: CurrentUser) -> Answer[VideoBody]:
    """Make a video of a file that has been uploaded."""
    made = await context.engine.jobs.uploads.make_video(
        user, original_file_id=body.original_file_id, title=body.title, effect_id=body.effect_id
    )
    return Answer(data=_video(await context.engine.jobs.views.video(user.tenant_id, made.id)), message="Made.")


@router.get("", responses=may_answer(401, 422, 503))
async def videos(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: Cursor = None
) -> Answer[Page[VideoBody]]:
    """Your videos, newest first."""
    page = await context.engine.jobs.views.videos(user.tenant_id, before_id=cursor, limit=limit)
    return Answer(data=Page(items=[_video(each) for each in page.items], next_cursor=page.next_cursor))


@router.get("/{video_id}", responses=may_answer(401, 404, 422, 503))
async def video(video_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[VideoBody]:
    """One video, with URLs of its files that work for a while."""
    return Answer(data=_video(await context.engine.jobs.views.video(user.tenant_id, video_id)))


@router.delete("/{video_id}", responses=may_answer(401, 403, 404, 409, 422, 503))
async def delete_video(video_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[Deleted]:
    """Delete a video, its file and everything that was made of it. 409 while a job needs them."""
    await context.engine.jobs.removal.video(user.tenant_id, video_id)
    return Answer(data=Deleted(id=video_id), message="Deleted.")


def _video(view: VideoView) -> VideoBody:
    video = view.video
    return VideoBody(
        id=video.id,
        title=video.title,
        status=video.status,
        progress=view.progress,
        error=view.error,
        effect_id=video.effect_id,
        job_id=video.job_id,
        original_file_url=view.original_file_url,
        processed_file_url=view.processed_file_url,
        created_at=video.created_at,
        updated_at=video.updated_at,
    )
