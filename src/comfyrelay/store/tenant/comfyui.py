"""The data that clients of ComfyUI's API sent with their jobs, and the files that its editor keeps."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, delete, func, insert, literal_column, or_, select, update

from comfyrelay.domain.records.jobs import JobRecord, PromptRecord
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.job_list import StatusFilter
from comfyrelay.store.tenant.jobs import JOB_COLUMNS
from comfyrelay.store.tenant.tables import ai_jobs, comfyui_files, comfyui_prompts
from comfyrelay.store.types import relay_now

_PROMPT = tuple(PromptRecord.__dataclass_fields__)
_PROMPT_COLUMNS = [comfyui_prompts.c[name].label(f"prompt_{name}") for name in _PROMPT]
_JOB = tuple(JobRecord.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True, slots=True)
class UserFile:
    """A file of the editor, without its content."""

    path: str
    size: int
    created_at: datetime
    modified_at: datetime


_FILE = [comfyui_files.c[name] for name in UserFile.__dataclass_fields__]


async def add_prompt(tx: Tx, tenant_id: str, prompt: PromptRecord, *, space_bytes: int | None) -> None:
    """Write the data that a client sent with a new job, and add its size to the space of the job, if it is counted."""
    values = {name: getattr(prompt, name) for name in _PROMPT}
    await tx.execute(insert(comfyui_prompts).values(**values, tenant_id=tenant_id))
    if space_bytes is not None:
        space = ai_jobs.c.space_bytes
        await tx.execute(update(ai_jobs).where(ai_jobs.c.id == prompt.job_id).values(space_bytes=space + space_bytes))


async def prompts_by_id(tx: Tx, tenant_id: str, prompt_ids: Collection[str]) -> dict[str, str]:
    """Return the jobs of prompts: prompt id → job id."""
    p = comfyui_prompts.c
    rows = await tx.execute(select(p.prompt_id, p.job_id).where(p.tenant_id == tenant_id, p.prompt_id.in_(prompt_ids)))
    return {row.prompt_id: row.job_id for row in rows}


async def prompts_of(tx: Tx, tenant_id: str, job_ids: Collection[str]) -> list[tuple[PromptRecord, JobRecord]]:
    query = _joined(tenant_id).where(comfyui_prompts.c.job_id.in_(job_ids))
    return [_pair(row) for row in await tx.execute(query)]


async def prompt_page(
    tx: Tx,
    tenant_id: str,
    *,
    filters: Collection[StatusFilter],
    workflow_id: str | None = None,
    shows_hidden: bool = False,
    oldest_first: bool = False,
    by_duration: bool = False,
    offset: int = 0,
    limit: int,
) -> tuple[list[tuple[PromptRecord, JobRecord]], int]:
    """Return a page of prompts with their jobs, and the total number of prompts."""
    query = _joined(tenant_id).where(or_(*(filter_.condition for filter_ in filters)))
    if workflow_id is not None:
        query = query.where(comfyui_prompts.c.workflow_id == workflow_id)
    if not shows_hidden:
        query = query.where(comfyui_prompts.c.hidden_at.is_(None))
    total = await tx.scalar(query.with_only_columns(func.count()))
    keys = [_duration(tx.dialect), ai_jobs.c.id] if by_duration else [ai_jobs.c.id]
    query = query.order_by(*(key.asc() if oldest_first else key.desc() for key in keys))
    return [_pair(row) for row in await tx.execute(query.offset(offset).limit(limit))], int(total)


async def hide_prompts(tx: Tx, tenant_id: str, job_ids: Collection[str]) -> None:
    """Remove ended jobs from the history of this API."""
    p = comfyui_prompts.c
    ended = select(ai_jobs.c.id).where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.completed_at.is_not(None))
    is_hidden = (p.tenant_id == tenant_id) & p.job_id.in_(job_ids) & p.job_id.in_(ended)
    await tx.execute(update(comfyui_prompts).where(is_hidden).values(hidden_at=relay_now()))


async def hide_all(tx: Tx, tenant_id: str) -> None:
    p = comfyui_prompts.c
    ended = select(ai_jobs.c.id).where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.completed_at.is_not(None))
    is_shown = (p.tenant_id == tenant_id) & p.hidden_at.is_(None) & p.job_id.in_(ended)
    await tx.execute(update(comfyui_prompts).where(is_shown).values(hidden_at=relay_now()))


async def list_files(tx: Tx, tenant_id: str, *, folder: str) -> Sequence[UserFile]:
    """Return the files below a folder such as `workflows/`, or all files if it is empty."""
    query = select(*_FILE).where(comfyui_files.c.tenant_id == tenant_id)
    if folder:
        query = query.where(comfyui_files.c.path.startswith(folder, autoescape=True))
    return await tx.all(UserFile, query.order_by(comfyui_files.c.path))


async def file_usage(tx: Tx, tenant_id: str, *, except_path: str) -> tuple[int, int]:
    """Return the number and the total size of a tenant's other files."""
    f = comfyui_files.c
    query = select(func.count(), func.coalesce(func.sum(f.size), 0))
    row = (await tx.execute(query.where(f.tenant_id == tenant_id, f.path != except_path))).one()
    return int(row[0]), int(row[1])


async def find_file(tx: Tx, tenant_id: str, path: str) -> UserFile | None:
    return await tx.one_or_none(UserFile, select(*_FILE).where(*_is_file(tenant_id, path)))


async def read_file(tx: Tx, tenant_id: str, path: str) -> bytes | None:
    found: bytes | None = await tx.scalar(select(comfyui_files.c.content).where(*_is_file(tenant_id, path)))
    return found


async def write_file(tx: Tx, tenant_id: str, path: str, content: bytes) -> UserFile:
    """Create or replace a file."""
    values = {"content": content, "size": len(content), "modified_at": relay_now()}
    changed = update(comfyui_files).where(*_is_file(tenant_id, path)).values(**values).returning(*_FILE)
    if (found := await tx.one_or_none(UserFile, changed)) is not None:
        return found
    new = insert(comfyui_files).values(tenant_id=tenant_id, path=path, created_at=relay_now(), **values)
    return await tx.one(UserFile, new.returning(*_FILE))


async def move_file(tx: Tx, tenant_id: str, path: str, to: str) -> UserFile | None:
    moved = update(comfyui_files).where(*_is_file(tenant_id, path)).values(path=to).returning(*_FILE)
    return await tx.one_or_none(UserFile, moved)


async def delete_file(tx: Tx, tenant_id: str, path: str) -> bool:
    return await tx.exists(delete(comfyui_files).where(*_is_file(tenant_id, path)).returning(comfyui_files.c.path))


def _is_file(tenant_id: str, path: str) -> tuple[Any, ...]:
    return comfyui_files.c.tenant_id == tenant_id, comfyui_files.c.path == path


def _joined(tenant_id: str) -> Select[Any]:
    joined = comfyui_prompts.join(ai_jobs, ai_jobs.c.id == comfyui_prompts.c.job_id)
    query = select(*_PROMPT_COLUMNS, *JOB_COLUMNS).select_from(joined)
    return query.where(comfyui_prompts.c.tenant_id == tenant_id)


def _pair(row: Any) -> tuple[PromptRecord, JobRecord]:
    fields = row._mapping
    prompt = PromptRecord(**{name: fields[f"prompt_{name}"] for name in _PROMPT})
    return prompt, JobRecord(**{name: fields[name] for name in _JOB})


def _duration(dialect: str) -> Any:
    """Return the run time of a job. Jobs that have not run come last."""
    j = ai_jobs.c
    if dialect == "postgresql":
        return func.coalesce(func.extract("epoch", j.completed_at - j.started_at), literal_column("-1"))
    return func.coalesce(func.julianday(j.completed_at) - func.julianday(j.started_at), literal_column("-1"))
