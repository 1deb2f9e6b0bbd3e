"""The target of `run` and `batch add`: a graph, an effect or a workflow, with its values and files."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comfyrelay.cli.output import print_note
from comfyrelay.errors import ComfyRelayError, Conflict, GraphError, InvalidInput, MissingOnWorkers, NotFound

if TYPE_CHECKING:
    from comfyrelay.client import AddedWorkflow, Client, Effect, Workflow
    from comfyrelay.comfyui.graphs.graph import Graph
    from comfyrelay.domain.properties import Property
    from comfyrelay.protocol.user import Input

_ASSETS = frozenset({"image", "video", "audio"})
# The id of an uploaded file.
_FILE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NEEDS_INPUT = "The workflow needs a file: name one with --input."
_ITEM = re.compile(r"items\.(\d+)\.(.+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmitTarget:
    """The target of a submission. `named` contains its `effect_id` or `workflow_slug`. Values and files are keyed by
    property."""

    named: dict[str, Any]
    title: str
    properties: Sequence[Input]
    values: dict[str, Any]
    files: dict[str, Path | str] = field(default_factory=dict)
    # The property names that the user typed, if they differ from the keys.
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def primary(self) -> str | None:
        return next((property_.key for property_ in self.properties if property_.is_primary_input), None)

    @property
    def assets(self) -> set[str]:
        return {property_.key for property_ in self.properties if property_.type in _ASSETS}

    def name(self, key: str) -> str:
        return self.names.get(key, key)

    def as_properties(self) -> list[Property]:
        """Convert to properties of the domain. Only user inputs are known, but not their places in the graph."""
        from comfyrelay.domain.properties import Property

        fields = Property.__dataclass_fields__
        known = [
            {"placeholder": property_.key, "user_configurable": True, **property_.model_dump(mode="json")}
            for property_ in self.properties
        ]
        return [Property.from_json({key: entry[key] for key in entry.keys() & fields.keys()}) for entry in known]


def check_files(what: str, inputs: Sequence[Path]) -> None:
    """Check that the files exist, before anything is started or uploaded."""
    from comfyrelay.comfyui.graphs.nodes import MEDIA_SUFFIXES

    for input_ in inputs:
        if not input_.is_file():
            raise InvalidInput(f"--input: There is no file {str(input_)!r} here.")
    if Path(what).suffix.lower() in MEDIA_SUFFIXES and not Path(what).is_file():
        raise InvalidInput(f"There is no file {what!r} here.")


def needs_input_file(graph: Mapping[str, Any], assignments: Sequence[str]) -> bool:
    """Whether a graph needs an input file that was not given. For an editor file, only the server knows."""
    from comfyrelay.comfyui.editor.workflow import is_editor_file
    from comfyrelay.comfyui.graphs.nodes import MEDIA_SUFFIXES
    from comfyrelay.services.forms.describe import describe_graph

    values = [split_assignment(assignment)[1] for assignment in assignments]
    if is_editor_file(graph) or any(_FILE_ID.fullmatch(value) or value.endswith(MEDIA_SUFFIXES) for value in values):
        return False
    return any(property_["type"] in _ASSETS for property_ in describe_graph(graph).properties)


@asynccontextmanager
async def remove_added(client: Client, what: str, *, if_refused: bool = False) -> AsyncIterator[set[str]]:
    """Yield a set for the slugs of workflows that the block adds for a file, and remove these workflows at the end
    unless they are still needed. With `if_refused`, remove them only if their job is refused."""
    from comfyrelay.comfyui.editor.loading import may_hold_workflow

    before = {workflow.slug for workflow in await client.workflows()} if may_hold_workflow(Path(what)) else set()
    added: set[str] = set()
    is_kept = False
    try:
        yield added
        is_kept = if_refused
    finally:
        for slug in () if is_kept else sorted(added - before):
            with suppress(ComfyRelayError):
                await _remove_unless_needed(client, slug)


async def _remove_unless_needed(client: Client, slug: str) -> None:
    try:
        await client.remove_workflow(slug, unless_needed=True)
    except Conflict as error:
        print_note(f"{error.detail} So {slug} stays: `comfyrelay workflows remove {slug}` removes it.", style="dim")


async def find_target(client: Client, what: str, assignments: Sequence[str], added: set[str]) -> SubmitTarget:
    """Find the effect or workflow with this name, or add the workflow of a file and put its slug into `added`."""
    from comfyrelay.comfyui.editor.loading import may_hold_workflow

    if may_hold_workflow(Path(what)):
        return await _add_graph(client, Path(what), assignments, added)
    for effect in await client.effects():
        if effect.slug == what:
            return _with_values({"effect_id": effect.id}, effect, assignments)
    workflow = _named(await client.workflows(), what)
    if workflow is None:
        raise NotFound(
            f"{what!r} is neither a file with a workflow, nor the name of an effect or workflow. There are: "
            f"{await _names(client)}."
        )
    if workflow.waiting is not None:
        raise MissingOnWorkers(f"{workflow.name}: {workflow.waiting} {_NO_JOB_YET} {_RUNS_LATER}")
    return _with_values({"workflow_slug": workflow.slug}, workflow, assignments)


async def send_files(client: Client, target: SubmitTarget, inputs: Sequence[Path]) -> tuple[list[str], dict[str, str]]:
    """Upload local files. Returns the ids of the input files, and the ids of other files by property."""
    primary = target.primary
    if inputs and primary is None:
        raise InvalidInput(_no_input_message(target))
    if inputs and primary in target.files:
        raise InvalidInput(f"--input and --set {target.name(primary)} are the same input: give only one of them.")
    sent = await client.upload_all([*inputs, *(file for file in target.files.values() if isinstance(file, Path))])
    ids = {key: sent[file] if isinstance(file, Path) else file for key, file in target.files.items()}
    input_ids = [ids.pop(primary)] if primary in ids else [sent[input_] for input_ in inputs]
    return input_ids, ids


def _no_input_message(target: SubmitTarget) -> str:
    if not target.assets:
        return "--input: The workflow takes no image, video or audio file. Omit --input."
    names = " or ".join(f"--set {target.name(asset)}=FILE" for asset in sorted(target.assets))
    return f"--input: The workflow has no main input. Name the file with {names}."


@contextmanager
def advise_anyway() -> Iterator[None]:
    """Mention the option --anyway in the advice about missing requirements."""
    try:
        yield
    except MissingOnWorkers as error:
        detail = error.detail.replace("add it anyway:", "add it with --anyway:")
        raise MissingOnWorkers(detail, missing=error.missing) from None


@contextmanager
def errors_with_options(target: SubmitTarget, *, has_input: bool) -> Iterator[None]:
    """Name options and paths in error messages instead of the properties and file ids of the API."""
    try:
        with advise_anyway():
            yield
    except InvalidInput as error:
        keys = {property_.key for property_ in target.properties}
        texts = [_with_option(target, key, text, keys, has_input=has_input) for key, text in error.errors.items()]
        if None in texts or not texts:
            raise
        raise InvalidInput(" ".join(filter(None, dict.fromkeys(texts))), errors=error.errors) from None


def _with_option(target: SubmitTarget, key: str, text: str, keys: Iterable[str], *, has_input: bool) -> str | None:
    """Return the message for an input; `None` for other fields."""
    item = _ITEM.fullmatch(key)
    key = item[2] if item else key
    if key not in keys:
        return None
    if key == target.primary and key not in target.files:
        if not has_input:
            return NEEDS_INPUT
        return f"--input: {text}" if item is None else f"--input, item {int(item[1]) + 1}: {text}"
    if key in target.assets and key not in target.files and key not in target.values:
        return f"The workflow needs one more file: name it with --set {target.name(key)}=FILE."
    return f"{target.name(key)}: {text}"


async def workflow_named(client: Client, name: str) -> Workflow:
    active = [workflow for workflow in await client.workflows() if workflow.is_active]
    workflow = _named(active, name)
    if workflow is None:
        known = ", ".join(workflow.name for workflow in active) or "none"
        raise NotFound(f"You have no workflow {name!r}. There are: {known}.")
    return workflow


def _named(workflows: Sequence[Workflow], what: str) -> Workflow | None:
    for workflow in workflows:
        if workflow.slug == what:
            return workflow
    found = [workflow for workflow in workflows if workflow.name == what]
    found = [workflow for workflow in found if workflow.is_active] or found
    if len(found) > 1:
        slugs = ", ".join(workflow.slug for workflow in found)
        raise InvalidInput(f"{len(found)} workflows are called {what!r}. Use a slug instead, newest first: {slugs}.")
    return found[0] if found else None


async def _names(client: Client) -> str:
    """Return the names of all targets, and slugs instead of ambiguous names."""
    effects = [effect.slug for effect in await client.effects()]
    workflows = [workflow for workflow in await client.workflows() if workflow.is_active]
    names = [workflow.name for workflow in workflows]
    shown = [workflow.name if names.count(workflow.name) == 1 else workflow.slug for workflow in workflows]
    return ", ".join([*effects, *shown])


def _with_values(named: dict[str, Any], what: Effect | Workflow, assignments: Sequence[str]) -> SubmitTarget:
    types = {property_.key: property_.type for property_ in what.properties}
    pairs = {find_key(name, types): value for name, value in map(split_assignment, assignments)}
    return SubmitTarget(
        named=named,
        title=what.name,
        properties=what.properties,
        values={
            key: _value(text, is_text=types.get(key) == "text")
            for key, text in pairs.items()
            if types.get(key) not in _ASSETS
        },
        files={key: _file(key, text) for key, text in pairs.items() if types.get(key) in _ASSETS},
    )


# While nodes of an editor file are missing, its inputs are unknown, so no job can wait for them.
_NO_JOB_YET = "It cannot become a job yet, not even with --anyway."
_RUNS_LATER = "It can be run once a worker has the nodes (see `comfyrelay workflows`)."


@dataclass(frozen=True, slots=True)
class _Setting:
    """A `--set` for a graph as typed, and the input of a node or of the workflow that it sets."""

    typed: str
    text: str
    node_id: str
    name: str

    @property
    def place(self) -> str:
        return f"{self.node_id}.{self.name}" if self.name else self.node_id


async def _advise_adding(client: Client, path: Path) -> str:
    if any(workflow.name == path.stem and workflow.waiting is not None for workflow in await client.workflows()):
        return f"{_NO_JOB_YET} It is stored as {path.stem!r}. {_RUNS_LATER}"
    return f"{_NO_JOB_YET} `comfyrelay workflows add {path} --anyway` stores it. {_RUNS_LATER}"


async def _add_graph(client: Client, path: Path, assignments: Sequence[str], added: set[str]) -> SubmitTarget:
    """Add the workflow of a file, with the given values."""
    from comfyrelay.comfyui.editor.loading import load_workflow

    try:
        described = (await client.add_graph(load_workflow(path), name=path.stem)).data
    except MissingOnWorkers as error:
        reason = error.detail.partition(" Or add it anyway:")[0]
        raise MissingOnWorkers(f"{reason} {await _advise_adding(client, path)}", missing=error.missing) from None
    added.add(described.slug)
    graph = described.graph
    settings = [_parse_setting(described, assignment) for assignment in assignments]
    types = {property_.key: property_.type for property_ in described.properties}
    keys = _keys_of(described)
    by_key = {setting.place: setting for setting in settings if setting.place in types}
    by_node = [setting for setting in settings if setting.place not in by_key]
    files = {
        setting.place: _file(setting.typed, setting.text)
        for setting in settings
        if types.get(keys.get(setting.place, setting.place)) in _ASSETS
    }
    changed = _apply(graph, by_node, files)
    # A value changes the graph if it belongs to no property, or if its property also sets other inputs. An unchanged
    # graph is not added again, because the workflow would then be kept.
    is_changed = json.dumps(changed) != json.dumps(graph)
    if is_changed and any(len(described.positions.get(keys.get(setting.place, ""), ())) != 1 for setting in by_node):
        described = (await client.add_graph(changed, name=path.stem)).data
        added.add(described.slug)
        keys = _keys_of(described)
    # Include unchanged values: a given seed must not be replaced by a random one.
    set_ = {setting.place: changed[setting.node_id]["inputs"][setting.name] for setting in by_node}
    values = {keys[place]: value for place, value in set_.items() if place in keys}
    values.update((key, _value(setting.text, is_text=types[key] == "text")) for key, setting in by_key.items())
    file_keys = {keys.get(place, place): file for place, file in files.items()}
    typed = {keys.get(setting.place, setting.place): setting.typed for setting in settings}
    for remark in described.remarks:
        print_note(remark)
    return SubmitTarget(
        named={"workflow_slug": described.slug},
        title=described.name,
        properties=described.properties,
        values={key: value for key, value in values.items() if key not in file_keys},
        files=file_keys,
        names={**{key: places[0] for key, places in described.positions.items() if places}, **typed},
    )


def _keys_of(described: AddedWorkflow) -> dict[str, str]:
    return {place: key for key, places in described.positions.items() for place in places}


def _parse_setting(described: AddedWorkflow, assignment: str) -> _Setting:
    from comfyrelay.comfyui.graphs.nodes import find_node

    typed, value = split_assignment(assignment)
    node, _, name = typed.rpartition(".")
    if not node:
        return _Setting(typed, value, find_key(typed, described.positions, or_else="NODE.INPUT=VALUE"), "")
    if typed in described.positions:
        return _Setting(typed, value, typed, "")
    node_id = find_node(described.graph, node)
    inputs = described.graph[node_id]["inputs"]
    if name not in inputs:
        raise GraphError(f"The node {node!r} has no input {name!r}. Its inputs: {', '.join(inputs) or 'none'}.")
    return _Setting(typed, value, node_id, name)


def _apply(graph: Graph, settings: Sequence[_Setting], files: Mapping[str, Path | str]) -> Graph:
    """Return a copy of the graph with these values."""
    changed: Graph = json.loads(json.dumps(graph))
    numbers = {file: number for number, file in enumerate(dict.fromkeys(files.values()))}
    for setting in settings:
        inputs, name = changed[setting.node_id]["inputs"], setting.name
        if (file := files.get(setting.place)) is not None:
            # Any unique name is fine: the graph gets the real one when it runs.
            inputs[name] = f"file-{numbers[file]}{Path(str(inputs[name])).suffix}"
        else:
            inputs[name] = _value(setting.text, is_text=isinstance(inputs[name], str))
    return changed


def _file(typed: str, text: str) -> Path | str:
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if _FILE_ID.fullmatch(text):
        return text
    raise InvalidInput(
        f"{typed}: There is no file {text!r} here. Give the path of a file on this machine, which is uploaded. Files "
        "in ComfyUI's own input folder cannot be used."
    )


def find_key(typed: str, known: Iterable[str], *, or_else: str = "") -> str:
    """Find a key, by its whole name or by a unique ending."""
    keys = list(known)
    if typed in keys:
        return typed
    ending = [key for key in keys if key.endswith(f"_{typed}")]
    if len(ending) == 1:
        return ending[0]
    close = ending or difflib.get_close_matches(typed, keys, n=1)
    advice = f"Did you mean {' or '.join(close)}? " if close else ""
    wanted = f"Write {or_else}, or one of these" if or_else else "There are"
    raise InvalidInput(f"There is no input {typed!r}. {advice}{wanted}: {', '.join(keys) or 'none'}.")


def split_assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InvalidInput(f"Write NAME=VALUE, not {text!r}.")
    return name, value


def _value(text: str, *, is_text: bool) -> Any:
    """Parse JSON numbers and booleans. Everything else is text, without quotes."""
    looks_like_json = r"\".*\"" if is_text else r"-?\d+(\.\d+)?([eE][+-]?\d+)?|true|false|null|\".*\""
    if re.fullmatch(looks_like_json, text):
        with suppress(ValueError):
            return json.loads(text)
    return text
