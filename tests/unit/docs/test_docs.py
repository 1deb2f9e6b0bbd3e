"""The documentation is complete, matches the code, and has no broken links."""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel
from sqlalchemy import Table
from sqlalchemy.schema import CreateTable

from comfyrelay import errors
from comfyrelay.cli.main import app
from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool import JobOptions, PoolJob, WorkflowPool
from comfyrelay.comfyui.pool.events import EVENT_CLASSES
from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.desk.scripts.command import ScriptSettings
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.domain.consistency import FindingKind
from comfyrelay.settings import Settings
from comfyrelay.simulator.misbehaviour import Misbehaviour
from comfyrelay.store.central import tables as central
from comfyrelay.store.tenant import tables as tenant
from comfyrelay.worker.settings import PLAIN_NAMES, WorkerSettings
from tests.support.paths import ROOT

REFERENCE = ROOT / "docs" / "reference"
POOL = REFERENCE / "pool.md"
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "ui" / "README.md"])

_FENCED = re.compile(r"^```.*?^```", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TEST_FILE = re.compile(r"`(tests/[\w/]+\.py)`(?: \(`(\w+)`\))?")


@cache
def read(page: Path) -> str:
    return page.read_text("utf-8")


def section(text: str, heading: str) -> str:
    """Return the text under a heading, up to the next heading of the same or a higher level."""
    level = len(heading) - len(heading.lstrip("#"))
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{level}}} |\Z)", text, re.M | re.S)
    assert found is not None, f"The page has no heading {heading!r}: add it."
    return found[1]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield every command by its full name, with its options."""
    pending: list[tuple[str, Any]] = [("comfyrelay", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop()
        yield name, [word for param in command.params for word in param.opts]
        pending.extend((f"{name} {word}", subcommand) for word, subcommand in getattr(command, "commands", {}).items())


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for a page's headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", read(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> list[tuple[Path, str]]:
    found = [(page, link) for page in PAGES for link in _LINK.findall(_FENCED.sub("", read(page)))]
    return [(page, link) for page, link in found if "://" not in link]


def missing_rows(page: Path, rows: Iterable[str]) -> list[str]:
    text = read(page)
    return [row for row in rows if row not in text]


def test_every_command_and_option_is_documented() -> None:
    text = read(REFERENCE / "cli.md")
    missing = [
        f"{name} {option}"
        for name, options in commands()
        for option in options
        if f"`{option}`" not in (text if name == "comfyrelay" else section(text, f"## {name}"))
    ]
    assert missing == []
    # commands without options also need a heading
    assert [name for name, _ in commands() if name != "comfyrelay" and f"\n## {name}\n" not in text] == []


def shown_default(settings: type[BaseModel], name: str) -> str:
    """Return the default as it is written in TOML or JSON."""
    default = settings.model_fields[name].get_default(call_default_factory=True)
    if default is None:
        return "not set"
    if isinstance(default, Path):
        default = str(default).replace(str(Path.home()), "~")
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def test_every_setting_is_documented_with_its_default() -> None:
    rows = [
        f"| `{ENV_PREFIX}{prefix}{name.upper()}` | `{name}` | {shown_default(settings, name)} |"
        for settings, prefix in ((Settings, ""), (DeskSettings, "DESK_"))
        for name in settings.model_fields
    ]
    for name in WorkerSettings.model_fields:
        plain = f"`{PLAIN_NAMES[name]}`" if name in PLAIN_NAMES else ""
        shown = shown_default(WorkerSettings, name)
        rows.append(f"| `{ENV_PREFIX}WORKER_{name.upper()}` | {plain} | `{name}` | {shown} |")
    assert missing_rows(REFERENCE / "settings.md", rows) == []


@pytest.mark.parametrize("name", ScriptSettings.model_fields)
def test_every_script_setting_is_documented_with_its_default(name: str) -> None:
    field = ScriptSettings.model_fields[name]
    shown = shown_default(ScriptSettings, name)
    # these defaults depend on the machine
    default = ".+" if name in ("python", "working_folder", "input_folder", "template_folder") else re.escape(shown)
    row = rf"^\| `{name}` \| {default} \| {re.escape(str(field.description))} \|$"
    assert re.search(row, section(read(REFERENCE / "settings.md"), "### The script of the desk"), re.M)


def test_every_error_is_documented_with_its_code() -> None:
    kinds = [kind for kind in vars(errors).values() if hasattr(kind, "code")]
    assert missing_rows(REFERENCE / "errors.md", (f"| `{kind.__name__}` | `{kind.code}` |" for kind in kinds)) == []


def test_every_pool_event_is_documented_with_its_class() -> None:
    rows = [f"| `{kind}` | `{EVENT_CLASSES[kind].__name__}` |" for kind in sorted(set(EVENT_CLASSES) - {"*"})]
    assert missing_rows(POOL, rows) == []


def public_names(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


def test_pool_is_documented_completely() -> None:
    parameters = inspect.signature(WorkflowPool).parameters
    assert missing_rows(POOL, (f"| `{name}` |" for name in [*parameters, *JobOptions.__annotations__])) == []
    names = [*public_names(WorkflowPool), *public_names(PoolJob)]
    assert [name for name in names if not re.search(rf"`{name}[`(]", read(POOL))] == []
    fields = [field.name for field in dataclasses.fields(RunResult)]
    assert [name for name in (*fields, *public_names(RunResult)) if f"`{name}" not in read(POOL)] == []


def test_every_simulator_misbehaviour_is_documented() -> None:
    names = [f"`{kind.__name__}`" for kind in Misbehaviour.__subclasses__()]
    assert missing_rows(ROOT / "docs" / "howto" / "simulator.md", names) == []


def test_every_reconcile_finding_is_documented() -> None:
    rows = [f"| `{kind}` |" for kind in FindingKind]
    assert missing_rows(ROOT / "docs" / "howto" / "reconcile.md", rows) == []


@pytest.mark.parametrize(
    ("heading", "tables"), [("## Central", central.metadata.tables), ("## Shard", tenant.metadata.tables)]
)
def test_every_table_is_documented(heading: str, tables: Mapping[str, Table]) -> None:
    text = section(read(REFERENCE / "schema.md"), heading)
    assert [table for table in tables if f"| `{table}` |" not in text] == []


def test_documented_constraints_exist() -> None:
    tables = [*central.metadata.tables.values(), *tenant.metadata.tables.values()]
    ddl = "\n".join(str(CreateTable(table)) for table in tables)
    known = {*re.findall(r"CONSTRAINT (\w+)", ddl), *(str(index.name) for table in tables for index in table.indexes)}
    documented = set(re.findall(r"`((?:uq|ck|fk|ix)_\w+)`", read(REFERENCE / "schema.md")))
    assert documented - known == set()


def test_named_tests_exist() -> None:
    named = [found for page in PAGES for found in _TEST_FILE.findall(read(page))]
    assert named
    missing = [
        (path, name)
        for path, name in named
        if not (ROOT / path).is_file() or (name and f"def {name}(" not in read(ROOT / path))
    ]
    assert missing == []


def threats() -> list[str]:
    rows = [
        line for line in read(ROOT / "docs" / "explanation" / "threat-model.md").splitlines() if line.startswith("|")
    ]
    return [row for row in rows if not row.endswith("| test |") and set(row) - set("|-")]


@pytest.mark.parametrize("row", [pytest.param(threat, id=threat[2:50]) for threat in threats()])
def test_every_threat_names_its_tests(row: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`((?: \(`\w+`(?:, `\w+`)*\))?)", row.rpartition(" | ")[2])
    assert named
    for path, names in named:
        text = read(ROOT / path)
        assert [name for name in re.findall(r"\w+", names) if f"def {name}(" not in text] == []


def test_links_resolve() -> None:
    broken = []
    for page, link in links():
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_every_page_is_reachable_from_the_readme() -> None:
    reached: set[Path] = set()
    pending = [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page not in reached:
            reached.add(page)
            found = [(page.parent / link.partition("#")[0]).resolve() for here, link in links() if here == page]
            pending.extend(target for target in found if target.suffix == ".md")
            # The site and GitHub list the decision records in this folder.
            pending.extend(page.parent.glob("0*.md") if page == ROOT / "docs" / "adr" / "README.md" else ())
    assert sorted(set(PAGES) - reached) == []


def test_index_lists_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for here, link in links() if here == index}
    pages = {page for page in PAGES if index.parent in page.parents and page.parent.name != "adr"}
    assert sorted(pages - listed - {index}) == []


PUBLIC = ("client", "comfyui", "comfyui.pool", "engine", "errors", "settings", "simulator")


def test_readme_imports_only_public_modules() -> None:
    imported = re.findall(r"^from comfyrelay\.([\w.]+) import", read(ROOT / "README.md"), re.M)
    assert imported
    assert set(imported) <= set(PUBLIC)


def test_every_package_is_in_the_architecture() -> None:
    packages = [path.parent.name for path in (ROOT / "src" / "comfyrelay").glob("*/__init__.py")]
    assert packages
    assert missing_rows(ARCHITECTURE, (f"| `{package}/` |" for package in packages)) == []


def test_places_named_in_the_architecture_exist() -> None:
    places = re.findall(r"`([\w/-]+(?:/|\.(?:md|py|toml)))`", read(ARCHITECTURE))
    assert places
    roots = (ROOT / "src" / "comfyrelay", ROOT)
    # names such as `http/` are folders of the package that the row names
    assert [place for place in places if "/" in place[:-1] and not any((root / place).exists() for root in roots)] == []


def test_pages_have_no_unfilled_placeholders() -> None:
    assert [page for page in PAGES if re.search(r"@[A-Z_]+@", read(page))] == []


def test_pages_wrap_at_120() -> None:
    # table rows and images cannot be wrapped
    long_lines = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in PAGES
        for number, line in enumerate(read(page).splitlines(), 1)
        if len(line) > 120 and not line.startswith(("|", "!["))
    ]
    assert long_lines == []
