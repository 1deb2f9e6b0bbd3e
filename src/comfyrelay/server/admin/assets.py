"""Files that effects are made with: uploaded once by an administrator, fetched by workers, never seen by users."""

from fastapi import status

from comfyrelay.domain.uploads import NewUpload
from comfyrelay.server.admin.models import AssetBody, NewAsset
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.base.answers import Answer
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.problems import may_answer

__all__ = ["router"]

router = admin_router("/assets")


@router.post("", status_code=status.HTTP_201_CREATED, responses=may_answer(413, 422))
async def begin_upload(body: NewAsset, context: ContextOf) -> Answer[AssetBody]:
    """Announce a file, and hear where its bytes go and how a default or an override names it."""
    upload = await context.engine.catalogue.assets.begin(NewUpload(**body.model_dump()))
    data = AssetBody(
        path=upload.path,
        upload_url=upload.signed.url,
        upload_headers=dict(upload.signed.headers),
        expires_at=upload.signed.expires_at,
    )
    return Answer(data=data, message="Send the bytes with PUT.")
