"""Every guarantee names tests and constraints that exist, and the index lists all of them."""

import re
from typing import Any

from sqlalchemy.schema import CreateTable

from comfyrelay.store.central import tables as central
from comfyrelay.store.tenant import tables as tenant
from docs.tools.guarantee_index import read_areas, render_index
from tests.support.paths import ROOT
from tests.unit.docs.test_docs import read

GUARANTEES: list[dict[str, Any]] = [guarantee for area in read_areas() for guarantee in area["guarantee"]]
TABLES = [*central.metadata.tables.values(), *tenant.metadata.tables.values()]
# Migrations create triggers, which are not in the table definitions.
TRIGGERS = {"token_transactions_append_only"}


def missing_tests(guarantee: dict[str, Any]) -> list[str]:
    missing = []
    for test in guarantee["tests"]:
        path, _, function = test.partition("::")
        found = (ROOT / path).exists() and (not function or f"def {function}(" in read(ROOT / path))
        if not found:
            missing.append(test)
    return missing


def test_every_guarantee_names_existing_tests() -> None:
    assert [guarantee["id"] for guarantee in GUARANTEES if not guarantee["tests"]] == []
    assert [test for guarantee in GUARANTEES for test in missing_tests(guarantee)] == []


def test_named_constraints_exist() -> None:
    ddl = "\n".join(str(CreateTable(table)) for table in TABLES)
    indexes = {str(index.name) for table in TABLES for index in table.indexes}
    named = {name for guarantee in GUARANTEES for name in guarantee.get("constraints", [])}
    assert named - {*re.findall(r"CONSTRAINT (\w+)", ddl), *indexes} - TRIGGERS == set()


def test_ids_are_unique() -> None:
    ids = [guarantee["id"] for guarantee in GUARANTEES]
    assert len(set(ids)) == len(ids)


def test_index_lists_every_guarantee() -> None:
    index = render_index()
    assert [guarantee["id"] for guarantee in GUARANTEES if f'<a id="{guarantee["id"]}"></a>' not in index] == []
