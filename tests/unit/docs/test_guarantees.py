"""Every guarantee names tests and constraints that exist, and the published index is up to date."""

import re
from typing import Any

import pytest
from sqlalchemy.schema import CreateTable

from comfyrelay.store.central import tables as central
from comfyrelay.store.tenant import tables as tenant
from docs.tools.guarantee_index import PAGE, read_areas, render_index
from tests.support.paths import ROOT
from tests.unit.docs.test_docs import read

GUARANTEES: list[dict[str, Any]] = [each for area in read_areas() for each in area["guarantee"]]
TABLES = [*central.metadata.tables.values(), *tenant.metadata.tables.values()]
# Triggers are created by migrations, and are not in the table definitions.
TRIGGERS = {"token_transactions_append_only"}


def missing_tests(guarantee: dict[str, Any]) -> list[str]:
    missing = []
    for test in guarantee["tests"]:
        path, _, function = test.partition("::")
        found = (ROOT / path).exists() and (not function or f"def {function}(" in read(ROOT / path))
        if not found:
            missing.append(test)
    return missing


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda each: each["id"])
def test_guarantee_names_existing_tests(guarantee: dict[str, Any]) -> None:
    assert guarantee["tests"]
    assert missing_tests(guarantee) == []


def test_named_constraints_exist() -> None:
    ddl = "\n".join(str(CreateTable(each)) for each in TABLES)
    indexes = {str(index.name) for each in TABLES for index in each.indexes}
    named = {name for each in GUARANTEES for name in each.get("constraints", [])}
    assert named - {*re.findall(r"CONSTRAINT (\w+)", ddl), *indexes} - TRIGGERS == set()


def test_ids_are_unique() -> None:
    ids = [each["id"] for each in GUARANTEES]
    assert len(set(ids)) == len(ids)


def test_index_is_up_to_date() -> None:
    assert read(PAGE) == render_index(), "run `make docs`"
