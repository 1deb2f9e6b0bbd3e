"""How every part of the admin API begins: with an administrator, whatever its routes say."""

from fastapi import APIRouter, Depends

from comfyrelay.server.base.auth import current_admin
from comfyrelay.server.base.bodies import BodyRoute
from comfyrelay.server.base.problems import may_answer


def admin_router(path: str = "") -> APIRouter:
    return APIRouter(
        prefix=f"/api/admin{path}",
        tags=["admin"],
        dependencies=[Depends(current_admin)],
        responses=may_answer(401, 403, 503),
        route_class=BodyRoute,
    )
