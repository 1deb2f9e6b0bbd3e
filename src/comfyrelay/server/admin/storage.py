"""Check object storage."""

from comfyrelay.protocol.admin import operations as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.services.operations.storage_check import CONTENT

router = admin_router("/storage")


@router.post("/check")
async def check_storage(context: ContextOf) -> Answer[wire.StorageCheck]:
    """Write, read and remove a small file, and allow uploads from pages of this server, if the storage supports such a
    rule. A browser can then check itself: PUT `upload_text` to `upload_url`, and GET it from `download_url`."""
    found = await context.engine.operations.storage_checks.run()
    data = wire.StorageCheck(
        url=context.settings.objects_url,
        tried=list(found.tried),
        upload_url=found.upload.url if found.upload else None,
        upload_headers=dict(found.upload.headers) if found.upload else None,
        upload_text=CONTENT.decode(),
        download_url=found.download_url,
    )
    return Answer(data=data)
