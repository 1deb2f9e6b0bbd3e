"""Routers, and the parameters and pages of their routes."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query
from fastapi.routing import APIRoute

from comfyrelay.errors import InvalidInput
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.protocol.fields import ID, MAX_ID, MAX_VERSION, STORABLE
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.problems import error_responses
from comfyrelay.services.paging import ResultPage

T = TypeVar("T")
U = TypeVar("U")
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
_SEARCH = (
    "words that must all occur in prompts and other values, labels, errors or ids; "
    '`"quoted words"` occur together, and `-word` must not occur'
)
SearchText = Annotated[
    str | None,
    Query(max_length=200, pattern=STORABLE, description=_SEARCH),
]
Limit = Annotated[int, Query(ge=1, le=200, description="maximum number of items")]
Cursor = Annotated[str | None, Query(max_length=64, pattern=ID, description=_NEXT)]
NumberCursor = Annotated[int | None, Query(ge=0, le=MAX_ID, description=_NEXT)]
# For versions, items and events, which are numbered within their parent by 32-bit columns.
PositionCursor = Annotated[int | None, Query(ge=0, le=MAX_VERSION, description=_NEXT)]
WorkerCursor = Annotated[str | None, Query(max_length=220, pattern=r"^[0-9]{1,9}/", description=_NEXT)]
TextCursor = Annotated[str | None, Query(max_length=200, pattern=STORABLE, description=_NEXT)]
# Dates outside this range could overflow in date arithmetic.
_EARLIEST, _LATEST = date(2000, 1, 1), date(9999, 1, 1)
FirstDay = Annotated[date | None, Query(alias="from", description="the first day, in UTC", ge=_EARLIEST, le=_LATEST)]
LastDay = Annotated[
    date | None, Query(alias="to", description="the last day, inclusive, in UTC", ge=_EARLIEST, le=_LATEST)
]


class Router(APIRouter):
    """A router with limits on request bodies."""

    def __init__(self, *, prefix: str, route_class: type[APIRoute] = BodyRoute, **options: Any) -> None:
        super().__init__(prefix=prefix, route_class=route_class, **options)


def user_router(prefix: str, tag: str, *, route_class: type[APIRoute] = BodyRoute) -> Router:
    """Create a router whose routes require a user, and document the errors that all of them share."""
    return Router(prefix=prefix, tags=[tag], responses=error_responses(401, 503), route_class=route_class)


def period_of(first: date | None, last: date | None) -> tuple[datetime | None, datetime | None]:
    """Return the start of the first day and the end of the last day."""
    if first is not None and last is not None and first > last:
        raise InvalidInput(errors={"from": "The first day must not be after `to`."})
    begins = None if first is None else datetime.combine(first, time(), UTC)
    return begins, None if last is None else datetime.combine(last + timedelta(days=1), time(), UTC)


def plain_page(listed: ResultPage[T]) -> Answer[Page[T]]:
    """Return a page whose items are response models already."""
    return Answer(data=Page(items=list(listed.items), next_cursor=listed.next_cursor))


def page_of(listed: ResultPage[T], body: Callable[[T], U]) -> Answer[Page[U]]:
    """Return a page with the response model of each item."""
    return Answer(data=Page(items=[body(item) for item in listed.items], next_cursor=listed.next_cursor))
