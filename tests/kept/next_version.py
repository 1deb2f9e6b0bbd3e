"""A later version, which has one more migration for each schema that only adds to it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from comfyrelay.store import checksums, migrate
from comfyrelay.store.migrate import Schema

ADD_COLUMN = "op.add_column('{table}', sa.Column('of_the_next_version', sa.Text()))"
TABLES = {Schema.CENTRAL: "ai_job_dispatches", Schema.TENANT: "ai_jobs"}
NEXT = """import sqlalchemy as sa
from alembic import op

revision = '{schema}_{number:04}'
down_revision = '{schema}_{before:04}'


def upgrade() -> None:
    {statement}
"""


@contextmanager
def next_version(folder: Path) -> Iterator[None]:
    """Inside the block, both schemas have one more migration."""
    shutil.copytree(migrate._FOLDER, folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migrate, "_FOLDER", folder)
            patch.setattr(checksums, "CHECKSUMS", {})
            write_next(folder, ADD_COLUMN)
            migrate.head.cache_clear()
            yield
    finally:
        migrate.head.cache_clear()


def write_next(folder: Path, statement: str) -> None:
    """Add a migration to both schemas."""
    for schema, table in TABLES.items():
        before = len(migrate.revisions(schema))
        text = NEXT.format(schema=schema, number=before + 1, before=before, statement=statement.format(table=table))
        (folder / schema / "versions" / f"{before + 1:04}_next.py").write_text(text)
