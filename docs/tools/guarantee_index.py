"""Render tests/guarantees.toml as a page of the documentation site."""

import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "guarantees.toml"
_HEAD = """# Guarantee index

Each guarantee with the tests and schema constraints that enforce it. `make mutants` breaks the rules one by one in a
copy of the source, and fails if no test notices. The [guarantees](../explanation/guarantees.md) page is the short
version. Constraints are explained in the [schema](schema.md).
"""


def read_areas() -> list[dict[str, Any]]:
    areas: list[dict[str, Any]] = tomllib.loads(SOURCE.read_text("utf-8"))["area"]
    return areas


def render_index() -> str:
    return "\n".join([_HEAD, *(line for area in read_areas() for line in _render_area(area))])


def _render_area(area: dict[str, Any]) -> list[str]:
    note = [area["note"], ""] if "note" in area else []
    rows = [
        f'| <a id="{guarantee["id"]}"></a>{guarantee["guarantee"]} | {_render_enforcement(guarantee)} |'
        for guarantee in area["guarantee"]
    ]
    return [f"## {area['name']}", "", *note, "| guarantee | enforced by |", "|---|---|", *rows, ""]


def _render_enforcement(guarantee: dict[str, Any]) -> str:
    files: defaultdict[str, list[str]] = defaultdict(list)
    for test in guarantee["tests"]:
        file, _, function = test.partition("::")
        files[file] += [f"`{function}`"] if function else []
    named = [f"`{file}` ({', '.join(functions)})" if functions else f"`{file}`" for file, functions in files.items()]
    return "; ".join([*(f"`{name}`" for name in guarantee.get("constraints", [])), *named])
