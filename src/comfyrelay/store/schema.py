"""Building blocks of the table definitions, and the metadata of both schemas."""

from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Index, Integer, MetaData, text

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
central_metadata = MetaData(naming_convention=_NAMES)
tenant_metadata = MetaData(naming_convention=_NAMES)

# SQLite assigns row ids automatically only to INTEGER PRIMARY KEY.
BigId = BigInteger().with_variant(Integer(), "sqlite")


def one_of(column: str, values: type[StrEnum], *, nullable: bool = False) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    condition = f"{column} IN ({listed})"
    return CheckConstraint(f"{column} IS NULL OR {condition}" if nullable else condition, name=column)


def partial_index(name: str, *columns: Any, where: str, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, postgresql_where=text(where), sqlite_where=text(where))
