"""The documentation is complete, matches the code, and has no broken link."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel
from sqlalchemy.schema import CreateTable

from comfyrelay import errors
from comfyrelay.cli.main import app
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
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "ui" / "README.md"])

_FENCED = re.compile(r"^```.*?^```", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TEST_FILE = re.compile(r"`(tests/[\w/]+\.py)`(?: \(`(\w+)`\))?")


def read(page: Path) -> str:
    return page.read_text("utf-8")


def section(text: str, heading: str) -> str:
    """The text under a heading, up to the next heading of the same or a higher level."""
    level = len(heading) - len(heading.lstrip("#"))
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{level}}} |\Z)", text, re.M | re.S)
    assert found is not None, f"The page has no heading {heading!r}: add it."
    return found[1]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command by its full name, with its options."""
    pending: list[tuple[str, Any]] = [("comfyrelay", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop()
        yield name, [word for param in command.params for word in param.opts]
        pending.extend((f"{name} {word}", subcommand) for word, subcommand in getattr(command, "commands", {}).items())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", read(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> list[tuple[Path, str]]:
    found = [(page, link) for page in PAGES for link in _LINK.findall(_FENCED.sub("", read(page)))]
    return [(page, link) for page, link in found if "://" not in link]


@pytest.mark.parametrize(("name", "options"), [pytest.param(*command, id=command[0]) for command in commands()])
def test_every_command_and_option_is_documented(name: str, options: list[str]) -> None:
    text = read(REFERENCE / "cli.md")
    about = text if name == "comfyrelay" else section(text, f"## {name}")
    assert [option for option in options if f"`{option}`" not in about] == []


def shown_default(settings: type[BaseModel], name: str) -> str:
    default = settings.model_fields[name].get_default(call_default_factory=True)
    if isinstance(default, Path):
        default = str(default).replace(str(Path.home()), "~")
    return "not set" if default is None else f"`{default}`"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented_with_its_default(name: str) -> None:
    shown = shown_default(Settings, name)
    row = f"| `{ENV_PREFIX}{name.upper()}` | `{name}` | {shown} |"
    assert row in read(REFERENCE / "settings.md")


@pytest.mark.parametrize("name", WorkerSettings.model_fields)
def test_every_worker_setting_is_documented_with_its_default_and_plain_name(name: str) -> None:
    shown = shown_default(WorkerSettings, name)
    plain = f"`{PLAIN_NAMES[name]}`" if name in PLAIN_NAMES else ""
    row = f"| `{ENV_PREFIX}WORKER_{name.upper()}` | {plain} | `{name}` | {shown} |"
    assert row in read(REFERENCE / "settings.md")


@pytest.mark.parametrize("name", DeskSettings.model_fields)
def test_every_desk_setting_is_documented_with_its_default(name: str) -> None:
    shown = shown_default(DeskSettings, name)
    row = f"| `{ENV_PREFIX}DESK_{name.upper()}` | `{name}` | {shown} |"
    assert row in read(REFERENCE / "settings.md")


@pytest.mark.parametrize("name", ScriptSettings.model_fields)
def test_every_script_setting_is_documented_with_its_default(name: str) -> None:
    field = ScriptSettings.model_fields[name]
    shown = "not set" if field.default is None else f"`{field.default}`"
    # these defaults depend on the machine
    default = ".+" if name in ("python", "working_folder", "input_folder", "template_folder") else re.escape(shown)
    row = rf"^\| `{name}` \| {default} \| {re.escape(str(field.description))} \|$"
    assert re.search(row, section(read(REFERENCE / "settings.md"), "### The script of the desk"), re.M)


@pytest.mark.parametrize("error", [kind for kind in vars(errors).values() if hasattr(kind, "code")])
def test_every_error_is_documented_with_its_code(error: type[errors.ComfyRelayError]) -> None:
    assert f"| `{error.__name__}` | `{error.code}` |" in read(REFERENCE / "errors.md")


@pytest.mark.parametrize("kind", sorted(set(EVENT_CLASSES) - {"*"}))
def test_every_pool_event_is_documented_with_its_class(kind: str) -> None:
    assert f"| `{kind}` | `{EVENT_CLASSES[kind].__name__}` |" in read(ROOT / "docs" / "howto" / "run-graphs.md")


@pytest.mark.parametrize("name", sorted(kind.__name__ for kind in Misbehaviour.__subclasses__()))
def test_every_simulator_misbehaviour_is_documented(name: str) -> None:
    assert f"`{name}`" in read(ROOT / "docs" / "howto" / "simulator.md")


@pytest.mark.parametrize("kind", FindingKind)
def test_every_reconcile_finding_is_documented(kind: FindingKind) -> None:
    assert f"| `{kind}` |" in read(ROOT / "docs" / "howto" / "reconcile.md")


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        *(("## Central", table) for table in central.metadata.tables),
        *(("## Shard", table) for table in tenant.metadata.tables),
    ],
)
def test_every_table_is_documented(heading: str, table: str) -> None:
    assert f"| `{table}` |" in section(read(REFERENCE / "schema.md"), heading)


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


@pytest.mark.parametrize(
    ("page", "link"), [pytest.param(*found, id=f"{found[0].name}-{found[1]}") for found in links()]
)
def test_links_resolve(page: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.exists()
    if anchor:
        assert anchor in anchors(target)


def test_every_page_is_reachable_from_the_readme() -> None:
    reached: set[Path] = set()
    pending = [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page not in reached:
            reached.add(page)
            found = [(page.parent / link.partition("#")[0]).resolve() for here, link in links() if here == page]
            pending.extend(target for target in found if target.suffix == ".md")
    assert sorted(set(PAGES) - reached) == []


PUBLIC = ("client", "comfyui", "comfyui.pool", "engine", "errors", "settings", "simulator")


def test_readme_imports_only_public_modules() -> None:
    imported = re.findall(r"^from comfyrelay\.([\w.]+) import", read(ROOT / "README.md"), re.M)
    assert imported
    assert set(imported) <= set(PUBLIC)


PACKAGES = sorted(path.parent.name for path in (ROOT / "src" / "comfyrelay").glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_in_the_architecture(package: str) -> None:
    assert f"| `{package}/` |" in read(ARCHITECTURE)


def test_places_named_in_the_architecture_exist() -> None:
    places = re.findall(r"`([\w/-]+(?:/|\.(?:md|py|toml)))`", read(ARCHITECTURE))
    assert places
    roots = (ROOT / "src" / "comfyrelay", ROOT)
    # `http/` and the like are folders of the package that the row names
    assert [place for place in places if "/" in place[:-1] and not any((root / place).exists() for root in roots)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_no_unfilled_placeholders(page: Path) -> None:
    assert re.findall(r"@[A-Z_]+@", read(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_wrap_at_120(page: Path) -> None:
    # table rows and images cannot be wrapped
    assert [line for line in read(page).splitlines() if len(line) > 120 and not line.startswith(("|", "!["))] == []
