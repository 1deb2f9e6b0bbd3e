"""Path and query parameters."""

from typing import Annotated

from fastapi import Path, Query

from comfyrelay.protocol.fields import ID, MAX_ID, MAX_VERSION, STORABLE

_NEXT = "`next_cursor` of the previous page"

IdInPath = Annotated[str, Path(max_length=64, pattern=ID)]
SlugInPath = Annotated[str, Path(max_length=200, pattern=r"^[^\x00/]+$")]
# A worker chooses its own id, which may contain a slash.
WorkerId = Annotated[str, Path(min_length=1, max_length=200, pattern=STORABLE)]
TenantId = Annotated[str, Path(max_length=64, pattern=r"^[^\x00/]+$")]
DispatchId = Annotated[int, Path(ge=1, le=MAX_ID)]
VersionNumber = Annotated[int, Path(ge=1, le=MAX_VERSION)]

TextFilter = Annotated[str | None, Query(max_length=200, pattern=STORABLE)]
SlugFilter = Annotated[str | None, Query(max_length=200, pattern=STORABLE, description="a slug")]
SearchText = Annotated[
    str | None,
    Query(max_length=200, pattern=STORABLE, description="text in prompts and other values, labels, errors and ids"),
]
Limit = Annotated[int, Query(ge=1, le=200, description="maximum number of items")]
Cursor = Annotated[str | None, Query(max_length=64, pattern=ID, description=_NEXT)]
NumberCursor = Annotated[int | None, Query(ge=0, le=MAX_ID, description=_NEXT)]
VersionCursor = Annotated[int | None, Query(ge=0, le=MAX_VERSION, description=_NEXT)]
WorkerCursor = Annotated[str | None, Query(max_length=220, pattern=r"^[0-9]{1,9}/", description=_NEXT)]
TextCursor = Annotated[str | None, Query(max_length=200, pattern=STORABLE, description=_NEXT)]
