"""Liveness and readiness, without authentication."""

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from comfyrelay.protocol.base import Answer
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import may_answer

router = APIRouter(tags=["operation"])


class Alive(BaseModel):
    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    status: Literal["ok", "degraded"]
    problems: Annotated[dict[str, str], Field(description="shards that cannot be used")]


@router.get("/healthz")
async def healthz() -> Answer[Alive]:
    """The process is alive. Nothing else is checked."""
    return Answer(data=Alive())


@router.get("/readyz", responses=may_answer(503))
async def readyz(context: ContextOf) -> Answer[Ready]:
    """The databases answer and are up to date, and object storage can be used; else 503 with the reason."""
    checked = await context.engine.operations.readiness.check()
    return Answer(data=Ready(status="degraded" if checked.problems else "ok", problems=checked.problems))
