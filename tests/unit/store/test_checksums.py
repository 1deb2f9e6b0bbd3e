"""The checksum of a migration depends on its code, and every migration has a pinned checksum."""

from pathlib import Path

import pytest

from comfyrelay.store import migrate
from comfyrelay.store.checksums import CHECKSUMS, checksum
from comfyrelay.store.migrate import Schema

SOURCE = '''"""Create a table."""

from alembic import op

TABLE = "a"


def upgrade() -> None:
    """Create it."""
    op.execute(f"CREATE TABLE {TABLE} (id integer)")
'''
SAME = {
    "comments": SOURCE.replace("TABLE =", "# Its name.\nTABLE ="),
    "docstrings": SOURCE.replace("Create it.", "Add the table.").replace('"""Create a table."""\n', ""),
    "formatting": SOURCE.replace('op.execute(f"', 'op.execute(\n        f"').replace('TABLE = "a"', "TABLE = ('a')"),
    "imports": SOURCE.replace("from alembic import op", "import sys\n\nfrom elsewhere import op"),
}
OTHER = {
    "value": SOURCE.replace('"a"', '"b"'),
    "statement": f"{SOURCE}    op.execute('SELECT 1')\n",
    "order": SOURCE.replace("id integer", "integer id"),
}


def checksum_of(text: str, folder: Path) -> str:
    path = folder / "0001_initial.py"
    path.write_text(text, encoding="utf-8")
    return checksum(path)


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_checksum_ignores_text_without_effect(text: str, tmp_path: Path) -> None:
    assert text != SOURCE
    assert checksum_of(text, tmp_path) == checksum_of(SOURCE, tmp_path)


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER)
def test_checksum_depends_on_the_code(text: str, tmp_path: Path) -> None:
    assert text != SOURCE
    assert checksum_of(text, tmp_path) != checksum_of(SOURCE, tmp_path)


def test_pinned_checksums_are_those_of_the_migrations() -> None:
    found = {
        revision: checksum(migrate.path_of(schema, revision))
        for schema in Schema
        for revision in migrate.revisions(schema)
    }
    assert found == CHECKSUMS, (
        "A migration was added or changed. Until the release, update CHECKSUMS in store/checksums.py. After it, leave "
        "released migrations and their checksums as they are, and add a migration."
    )
