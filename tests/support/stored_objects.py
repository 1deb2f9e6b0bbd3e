"""Compare the object storage with the rows of the databases."""

from sqlalchemy import select

from comfyrelay.domain.ids import private_graph_path, source_path
from comfyrelay.services.engine import Engine
from comfyrelay.store.tenant import tables as tenant


async def stored_and_known_paths(engine: Engine) -> tuple[set[str], set[str]]:
    """Return the objects of tenants except posters, previews and editor files, and the paths named in rows."""
    stored = {source_path(file.path).removesuffix(".editor") async for file in engine.objects.list("tenants")}
    known: set[str] = set()
    for shard in engine.databases.shards.values():
        async with shard.read() as tx:
            known |= {row.path for row in await tx.execute(select(tenant.files.c.path))}
            graphs = await tx.execute(select(tenant.graphs.c.tenant_id, tenant.graphs.c.id))
            known |= {private_graph_path(row.tenant_id, row.id) for row in graphs}
    return stored, known
