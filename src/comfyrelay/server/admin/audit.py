"""The audit log of users' changes: who changed what, when, and from where."""

import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import Depends
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter

from comfyrelay.domain.records.operations import AuditFilter
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.protocol.records import AuditLogEntry
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import FirstDay, LastDay, Limit, NumberCursor, TextFilter, period_of

router = admin_router("/audit")
EXPORT_PAGE = 500
ENTRY = TypeAdapter(AuditLogEntry)
COLUMNS = tuple(AuditLogEntry.__dataclass_fields__)
# A spreadsheet runs a cell that begins with one of these characters as a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def _wanted(
    search: TextFilter = None, action: TextFilter = None, first: FirstDay = None, last: LastDay = None
) -> AuditFilter:
    begins, ends = period_of(first, last)
    return AuditFilter(search=search, action=action, begins=begins, ends=ends)


Wanted = Annotated[AuditFilter, Depends(_wanted)]


@router.get("", responses=error_responses(422))
async def list_audit_log(
    context: ContextOf, wanted: Wanted, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[AuditLogEntry]]:
    """List the changes that users made, newest first. `search` matches part of the user, object, action or address."""
    page = await context.engine.audit.page(wanted, cursor=cursor, limit=limit)
    return Answer(data=Page(items=[*page.items], next_cursor=page.next_cursor))


@router.get("/export", response_class=StreamingResponse, responses=error_responses(422))
async def export_audit_log(
    context: ContextOf, wanted: Wanted, format: Literal["csv", "jsonl"] = "csv"
) -> StreamingResponse:
    """Download all entries, newest first, as CSV or as one JSON object per line."""
    lines = _lines(context, format, wanted)
    media_type = "text/csv" if format == "csv" else "application/jsonl"
    disposition = f'attachment; filename="audit.{format}"'
    return StreamingResponse(lines, media_type=media_type, headers={"Content-Disposition": disposition})


async def _lines(context: Context, kind: str, wanted: AuditFilter) -> AsyncIterator[str]:
    if kind == "csv":
        yield _csv_line(COLUMNS)
    cursor: int | None = None
    while True:
        page = await context.engine.audit.page(wanted, cursor=cursor, limit=EXPORT_PAGE)
        for entry in page.items:
            fields = ENTRY.dump_python(entry, mode="json")
            if kind == "csv":
                yield _csv_line([_cell(fields[name]) for name in COLUMNS])
            else:
                yield json.dumps(fields, ensure_ascii=False) + "\n"
        if page.next_cursor is None:
            return
        cursor = int(page.next_cursor)


def _csv_line(cells: Any) -> str:
    file = io.StringIO()
    csv.writer(file).writerow(cells)
    return file.getvalue()


def _cell(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA_STARTS) else text
