"""Usage and cost of machines, and revenue."""

from datetime import date
from typing import Annotated

from fastapi import Query

from comfyrelay.errors import InvalidInput
from comfyrelay.protocol.admin import fleets as wire
from comfyrelay.protocol.admin.revenue import Revenue
from comfyrelay.protocol.base import Answer
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.services.accounts.revenue import RevenueGrouping
from comfyrelay.services.autoscaling.usage import UsageGrouping

router = admin_router("/usage")
# Dates outside this range could overflow in date arithmetic.
EARLIEST, LATEST = date(2000, 1, 1), date(9999, 1, 1)
First = Annotated[
    date | None, Query(alias="from", description="the first day; default: 30 days ago", ge=EARLIEST, le=LATEST)
]
Last = Annotated[
    date | None, Query(alias="to", description="the last day, inclusive; default: today", ge=EARLIEST, le=LATEST)
]


@router.get("", responses=error_responses(422))
async def get_usage(
    context: ContextOf, by: UsageGrouping = UsageGrouping.FLEET, first: First = None, last: Last = None
) -> Answer[list[wire.Usage]]:
    """Get seconds and cost of machines by fleet, workflow or tenant. The last minute may be missing."""
    if first is not None and last is not None and first > last:
        raise InvalidInput(errors={"from": "The first day must not be after `to`."})
    return Answer(data=await context.engine.autoscaling.usage.report(by, first=first, last=last))


@router.get("/revenue", responses=error_responses(422, 503))
async def get_revenue(
    context: ContextOf, by: RevenueGrouping = RevenueGrouping.EFFECT, first: First = None, last: Last = None
) -> Answer[list[Revenue]]:
    """Get charged tokens and the cost of machines by effect, tenant or day. The last minute of costs may be missing."""
    if first is not None and last is not None and first > last:
        raise InvalidInput(errors={"from": "The first day must not be after `to`."})
    return Answer(data=await context.engine.accounts.revenue.report(by, first=first, last=last))
