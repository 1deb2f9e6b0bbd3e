"""Asset files of effects: uploaded by administrators, downloaded by workers, not visible to users."""

from fastapi import status

from comfyrelay.domain.uploads import AnnouncedUpload
from comfyrelay.protocol.admin import catalogue as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import may_answer

router = admin_router("/assets")


@router.post("", status_code=status.HTTP_201_CREATED, responses=may_answer(413, 422))
async def begin_upload(body: wire.NewAsset, context: ContextOf) -> Answer[wire.AssetUpload]:
    """Announce a file. The response has the upload URL, and the path that defaults and overrides use."""
    upload = await context.engine.catalogue.assets.create_upload(AnnouncedUpload(**body.model_dump()))
    signed = upload.signed
    data = wire.AssetUpload.of(upload, signed, upload_url=signed.url, upload_headers=signed.headers)
    return Answer(data=data, message="Send the bytes with PUT.")
