"""Compare the tables of a database with their definitions."""

from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Connection, MetaData, inspect

from comfyrelay.store.database import Database
from comfyrelay.store.migrate import Schema
from comfyrelay.store.schema_check import OWN_TABLES


async def differences(database: Database, schema: Schema) -> list[object]:
    async with database.read() as tx:
        return await tx.run_sync(_differences, schema)


def _differences(connection: Connection, schema: Schema) -> list[object]:
    def belongs(item: Any, _name: object, _kind: object, is_reflected: bool, _other: object) -> bool:
        if item.name in OWN_TABLES:
            return False
        return is_reflected or item.info.get("only") in {None, connection.dialect.name}

    opts = {"compare_type": True, "compare_server_default": True, "include_object": belongs}
    found = compare_metadata(MigrationContext.configure(connection, opts=opts), schema.metadata)
    # Alembic does not compare check constraints.
    checks = _checks_of(connection, schema.metadata) ^ _defined_checks(connection, schema.metadata)
    return [*found, *sorted(checks)]


def _checks_of(connection: Connection, metadata: MetaData) -> set[tuple[str, str]]:
    found = inspect(connection)
    tables = set(metadata.tables) & set(found.get_table_names())
    return {(table, str(constraint["name"])) for table in tables for constraint in found.get_check_constraints(table)}


def _defined_checks(connection: Connection, metadata: MetaData) -> set[tuple[str, str]]:
    names = connection.dialect.identifier_preparer
    return {
        (table.name, str(names.format_constraint(constraint)))
        for table in metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }
