"""Read forms with one file (`multipart/form-data`)."""

from collections.abc import AsyncGenerator
from typing import BinaryIO

from blake3 import blake3
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from comfyrelay.errors import InvalidInput, TooLarge
from comfyrelay.text import format_bytes

PIECE_BYTES = 1024 * 1024
# Limits on the other fields of a form.
MAX_FIELDS, MAX_FIELD_BYTES = 100, 16 * 1024
MAX_OVERHEAD_BYTES = 1024 * 1024


async def read_form(request: Request, *, max_bytes: int) -> FormData:
    """Read a form. The parser keeps its file in memory or in a temporary file. The caller must close the form."""
    if not request.headers.get("Content-Type", "").lower().startswith("multipart/form-data"):
        raise InvalidInput("Send the file as multipart/form-data.")
    announced = request.headers.get("Content-Length", "")
    if announced.isdecimal() and int(announced[:18]) > max_bytes + MAX_OVERHEAD_BYTES:
        raise _too_large(max_bytes)
    limited = _read_limited(request, max_bytes=max_bytes)
    try:
        return await MultiPartParser(
            request.headers, limited, max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
        ).parse()
    except (MultiPartException, KeyError, ValueError):
        raise InvalidInput("This is not a valid form with one file.") from None
    except ClientDisconnect:
        raise InvalidInput("The connection was closed before the upload was complete.") from None


async def _read_limited(request: Request, *, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of the body. Raises `TooLarge` over the limit."""
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes + MAX_OVERHEAD_BYTES:
            raise _too_large(max_bytes)
        yield chunk


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"This file is too large: you can upload at most {format_bytes(max_bytes)}.")


def hash_blake3(file: BinaryIO) -> str:
    """Return the hash of a file, and rewind the file."""
    digest = blake3()
    file.seek(0)
    while piece := file.read(PIECE_BYTES):
        digest.update(piece)
    file.seek(0)
    return digest.hexdigest()
