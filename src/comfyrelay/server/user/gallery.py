"""The gallery: outputs, marks, collections, and zip downloads."""

from datetime import date
from typing import Annotated

from fastapi import Depends, Query
from fastapi.responses import StreamingResponse

from comfyrelay.clock import utc_now
from comfyrelay.domain.gallery import GallerySort, Grouping, MarkChange, MarkFilter, OutputKind
from comfyrelay.protocol import gallery as wire
from comfyrelay.protocol.base import Answer, Items
from comfyrelay.protocol.fields import ID, STORABLE
from comfyrelay.protocol.user import Deleted
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Cursor, IdInPath, Limit, SlugFilter, user_router
from comfyrelay.services.gallery.collections import CollectionView
from comfyrelay.services.gallery.listing import GalleryOutputView, GalleryQuery, OutputGroup
from comfyrelay.storage.headers import content_disposition
from comfyrelay.text import counted

router = user_router("/api", "gallery")
_SEARCH = (
    "words that must all occur in the values, the label, the note, or the name of the workflow or batch; "
    '`"quoted words"` occur together, and `-word` must not occur'
)
_ZIP_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # Prevents a proxy from buffering the whole zip.
    "X-Accel-Buffering": "no",
}


async def _query(
    *,
    q: Annotated[str, Query(max_length=200, pattern=STORABLE, description=_SEARCH)] = "",
    workflow: SlugFilter = None,
    batch: Annotated[str | None, Query(max_length=64, pattern=ID, description="its id")] = None,
    kind: OutputKind | None = None,
    mark: MarkFilter | None = None,
    collection: Annotated[str | None, Query(max_length=64, pattern=ID, description="its id")] = None,
    from_: Annotated[date | None, Query(alias="from", description="the first day")] = None,
    to: Annotated[date | None, Query(description="the last day")] = None,
    tz: Annotated[
        str, Query(max_length=64, pattern=STORABLE, description="the time zone of the days, such as Europe/Vienna")
    ] = "UTC",
) -> GalleryQuery:
    return GalleryQuery(
        search=q,
        workflow=workflow,
        batch_id=batch,
        kind=kind,
        mark=mark,
        collection_id=collection,
        first_day=from_,
        last_day=to,
        zone=tz,
    )


Filter = Annotated[GalleryQuery, Depends(_query)]
OutputIds = Annotated[
    str,
    Query(
        max_length=6500,
        pattern=r"^[A-Za-z0-9_-]{1,64}(,[A-Za-z0-9_-]{1,64}){0,99}$",
        description="comma-separated, at most 100",
    ),
]


@router.get("/gallery", responses=error_responses(422))
async def gallery(
    *,
    filter_: Filter,
    context: ContextOf,
    user: CurrentUser,
    sort: GallerySort = GallerySort.NEWEST,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Answer[wire.GalleryPage]:
    """List the outputs of your jobs by time."""
    page = await context.engine.gallery.listing.page(user.tenant_id, filter_, sort=sort, cursor=cursor, limit=limit)
    items = [_item(item) for item in page.listed.items]
    return Answer(data=wire.GalleryPage(items=items, next_cursor=page.listed.next_cursor, total=page.total))


@router.get("/gallery/days", responses=error_responses(422))
async def gallery_days(filter_: Filter, context: ContextOf, user: CurrentUser) -> Answer[wire.GalleryDays]:
    """Count outputs per day, newest first, without empty days."""
    found = await context.engine.gallery.listing.days(user.tenant_id, filter_)
    return Answer(data=wire.GalleryDays(days=[wire.GalleryDay(day=day, count=count) for day, count in found]))


@router.get("/gallery/index", responses=error_responses(422))
async def gallery_index(
    *,
    filter_: Filter,
    context: ContextOf,
    user: CurrentUser,
    sort: GallerySort = GallerySort.NEWEST,
    by: Grouping = Grouping.DAY,
) -> Answer[wire.GalleryIndex]:
    """List the ids and aspect ratios of all matches in groups, for the layout of the whole grid."""
    found = await context.engine.gallery.listing.index(user.tenant_id, filter_, by=by, sort=sort)
    return Answer(data=wire.GalleryIndex(groups=[_group(group) for group in found.groups], total=found.total))


@router.get("/gallery/items", responses=error_responses(422))
async def gallery_items(ids: OutputIds, context: ContextOf, user: CurrentUser) -> Answer[Items[wire.GalleryItem]]:
    """Get outputs by id, in the given order. Deleted outputs are left out."""
    listing = context.engine.gallery.listing
    found = await listing.by_ids(user.tenant_id, ids.split(","))
    views = await listing.views(user.tenant_id, list(found.values()))
    return Answer(data=Items(items=[_item(view) for view in views]))


@router.post("/gallery/marks", responses=error_responses(403, 404, 422))
async def mark_outputs(body: wire.NewMarks, context: ContextOf, user: CurrentUser) -> Answer[wire.MarksChanged]:
    """Star, reject or annotate outputs, and add them to or remove them from a collection."""
    change = MarkChange(starred=body.starred, rejected=body.rejected, note=body.note)
    done = await context.engine.gallery.actions.mark(
        user.tenant_id, body.ids, change, add_to=body.add_to, remove_from=body.remove_from
    )
    return Answer(data=done)


@router.post("/gallery/delete", responses=error_responses(403, 422))
async def delete_outputs(
    body: wire.DeleteOutputs, context: ContextOf, user: CurrentUser
) -> Answer[wire.DeletedOutputs]:
    """Delete outputs. A job without remaining outputs is deleted with its log. The ledger is not changed."""
    done = await context.engine.gallery.actions.delete(user.tenant_id, body.ids, keep_files=body.keep_files)
    data = wire.DeletedOutputs.of(done, done.jobs, jobs=done.jobs.changed)
    jobs = f", with {counted(data.jobs, 'job')}" if data.jobs else ""
    files = f" and {counted(data.files, 'file')} in the output folder" if data.files else ""
    return Answer(data=data, message=f"Deleted {counted(len(data.deleted), 'output')}{jobs}{files}.")


@router.post("/gallery/zip", status_code=201, responses=error_responses(403, 404, 422))
async def make_zip(body: wire.ChosenOutputs, context: ContextOf, user: CurrentUser) -> Answer[wire.Zip]:
    """Create a zip of outputs. Only you can download it, and you must start within 15 minutes."""
    zip_id = await context.engine.gallery.zips.create(user, body.ids)
    return Answer(data=wire.Zip(url=f"{router.prefix}/gallery/zips/{zip_id}"))


@router.get(
    "/gallery/zips/{zip_id}",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The zip",
            "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
        },
        **error_responses(404, 422),
    },
)
async def download_zip(zip_id: IdInPath, context: ContextOf, user: CurrentUser) -> StreamingResponse:
    """Download a zip, which is created while it is sent. A text file in the zip lists missing outputs."""
    chunks = await context.engine.gallery.zips.open(user, zip_id)
    name = f"outputs-{utc_now():%Y-%m-%d-%H%M}.zip"
    return StreamingResponse(
        chunks, media_type="application/zip", headers=_ZIP_HEADERS | {"Content-Disposition": content_disposition(name)}
    )


@router.get("/collections")
async def collections(context: ContextOf, user: CurrentUser) -> Answer[Items[wire.Collection]]:
    """List your collections by name."""
    found = await context.engine.gallery.collections.list_collections(user.tenant_id)
    return Answer(data=Items(items=[_collection(view) for view in found]))


@router.post("/collections", status_code=201, responses=error_responses(403, 409, 422))
async def create_collection(body: wire.NewCollection, context: ContextOf, user: CurrentUser) -> Answer[wire.Collection]:
    """Create a collection with a unique name."""
    made = await context.engine.gallery.collections.create(user.tenant_id, body.name)
    return Answer(data=_collection(made), message="Created.")


@router.patch("/collections/{collection_id}", responses=error_responses(403, 404, 409, 422))
async def rename_collection(
    collection_id: IdInPath, body: wire.NewCollection, context: ContextOf, user: CurrentUser
) -> Answer[wire.Collection]:
    """Rename a collection."""
    renamed = await context.engine.gallery.collections.rename(user.tenant_id, collection_id, body.name)
    return Answer(data=_collection(renamed), message="Renamed.")


@router.delete("/collections/{collection_id}", responses=error_responses(403, 404, 422))
async def delete_collection(collection_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[Deleted]:
    """Delete a collection. Its outputs stay in the gallery."""
    await context.engine.gallery.collections.remove(user.tenant_id, collection_id)
    return Answer(data=Deleted(id=collection_id), message="Deleted. Its outputs are still in the gallery.")


def _item(view: GalleryOutputView) -> wire.GalleryItem:
    return wire.GalleryItem.of(view, view.output, collections=list(view.collections))


def _group(group: OutputGroup) -> wire.GalleryGroup:
    ratios = [round(100 * item.width / item.height) if item.width and item.height else 0 for item in group.items]
    return wire.GalleryGroup(key=group.key, name=group.name, ids=[item.id for item in group.items], ratios=ratios)


def _collection(view: CollectionView) -> wire.Collection:
    cover = view.cover
    shown = wire.Cover.of(cover, cover.output) if cover is not None else None
    return wire.Collection.of(view, cover=shown)
