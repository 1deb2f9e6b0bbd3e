"""Where the tables of a database and their definitions in the code disagree."""

from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from comfyrelay.store.database import Database
from comfyrelay.store.migrate import Schema


async def differences(database: Database, schema: Schema) -> list[object]:
    async with database.read() as tx:
        return await tx.run_sync(_differences, schema)


def _differences(connection: Connection, schema: Schema) -> list[object]:
    def belongs(item: Any, _name: object, _kind: object, is_reflected: bool, _other: object) -> bool:
        return is_reflected or item.info.get("only") in {None, connection.dialect.name}

    opts = {"compare_type": True, "compare_server_default": True, "include_object": belongs}
    return list(compare_metadata(MigrationContext.configure(connection, opts=opts), schema.metadata))
