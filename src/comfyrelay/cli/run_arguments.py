"""The arguments of `run` and `batch add`: a graph, an effect or a workflow, `--set`, and files."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comfyrelay.errors import ComfyRelayError, GraphError, InvalidInput, MissingOnWorkers, NotFound

if TYPE_CHECKING:
    from comfyrelay.client import Client, DescribedGraph, Effect, Workflow
    from comfyrelay.comfyui.graphs.graph import Graph
    from comfyrelay.domain.properties import Property
    from comfyrelay.protocol.user import Input

_ASSETS = frozenset({"image", "video", "audio"})
# The prefix of an uploaded file.
_FILE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ITEM = re.compile(r"items\.(\d+)\.(.+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmitTarget:
    """The target of a submission. `named` has its `effect_id` or `workflow_slug`; values and files are by property."""

    named: dict[str, Any]
    # its display name
    title: str
    properties: Sequence[Input]
    values: dict[str, Any]
    files: dict[str, Path | str] = field(default_factory=dict)
    # the names that the user typed for properties, if not their keys
    names: Mapping[str, str] = field(default_factory=dict)
    # notes about an added graph
    remarks: Sequence[str] = ()

    @property
    def primary(self) -> str | None:
        return next((property_.key for property_ in self.properties if property_.is_primary_input), None)

    @property
    def assets(self) -> set[str]:
        return {property_.key for property_ in self.properties if property_.type in _ASSETS}

    def name(self, key: str) -> str:
        return self.names.get(key, key)

    def as_properties(self) -> list[Property]:
        """For the rules of the domain. Only user inputs are known here, without their places in the graph."""
        from comfyrelay.domain.properties import Property

        fields = Property.__dataclass_fields__
        known = [
            {"placeholder": property_.key, "user_configurable": True, **property_.model_dump(mode="json")}
            for property_ in self.properties
        ]
        return [Property.from_json({key: entry[key] for key in entry.keys() & fields.keys()}) for entry in known]


def check_files(what: str, inputs: Sequence[Path]) -> None:
    """Check before anything is started or uploaded."""
    from comfyrelay.comfyui.graphs.nodes import MEDIA_SUFFIXES

    for input_ in inputs:
        if not input_.is_file():
            raise InvalidInput(f"--input: There is no file {str(input_)!r} here.")
    if Path(what).suffix.lower() in MEDIA_SUFFIXES and not Path(what).is_file():
        raise InvalidInput(f"There is no file {what!r} here.")


def lacks_its_file(graph: Mapping[str, Any], sets: Sequence[str]) -> bool:
    """Whether a graph needs an input file that was not given; for an editor file only the server knows."""
    from comfyrelay.comfyui.editor.workflow import is_editor_file
    from comfyrelay.comfyui.graphs.nodes import MEDIA_SUFFIXES
    from comfyrelay.services.forms.describe import describe_graph

    given = [_pair(each)[1] for each in sets]
    if is_editor_file(graph) or any(_FILE_ID.fullmatch(each) or each.endswith(MEDIA_SUFFIXES) for each in given):
        return False
    return any(property_["type"] in _ASSETS for property_ in describe_graph(graph).properties)


@asynccontextmanager
async def refused_leaves_nothing(client: Client, what: str) -> AsyncIterator[None]:
    """Remove the workflow of a file again if its job is refused."""
    from comfyrelay.comfyui.editor.loading import may_hold_workflow

    is_file = may_hold_workflow(Path(what))
    before = {workflow.slug for workflow in await client.workflows()} if is_file else set()
    try:
        yield
    except ComfyRelayError:
        with suppress(ComfyRelayError):
            for each in await client.workflows() if is_file else ():
                if each.slug not in before and each.name == Path(what).stem:
                    await client.remove_workflow(each.slug)
        raise


async def find_target(client: Client, what: str, given: Sequence[str]) -> SubmitTarget:
    """A graph file becomes a workflow; other texts name an effect or workflow."""
    from comfyrelay.comfyui.editor.loading import may_hold_workflow

    if may_hold_workflow(Path(what)):
        return await _of_graph(client, Path(what), given)
    for effect in await client.effects():
        if effect.slug == what:
            return _of_properties({"effect_id": effect.id}, effect, given)
    workflow = _named(await client.workflows(), what)
    if workflow is None:
        raise NotFound(
            f"{what!r} is neither a file with a workflow, nor an effect or a workflow. There are: "
            f"{await _names(client)}."
        )
    if workflow.waiting is not None:
        raise MissingOnWorkers(f"{workflow.name}: {workflow.waiting} {_NO_JOB_YET} {_RUNS_LATER}")
    return _of_properties({"workflow_slug": workflow.slug}, workflow, given)


async def send_files(client: Client, target: SubmitTarget, inputs: Sequence[Path]) -> tuple[list[str], dict[str, str]]:
    """Upload local files. Returns the ids of the input files, and the ids of other files by property."""
    primary = target.primary
    if inputs and primary is None:
        raise InvalidInput(_takes_no_input(target))
    if inputs and primary in target.files:
        raise InvalidInput(f"--input and --set {target.name(primary)} are the same input: name one of them.")
    sent = await client.upload_all([*inputs, *(file for file in target.files.values() if isinstance(file, Path))])
    ids = {key: sent[each] if isinstance(each, Path) else each for key, each in target.files.items()}
    works_on = [ids.pop(primary)] if primary in ids else [sent[input_] for input_ in inputs]
    return works_on, ids


def _takes_no_input(target: SubmitTarget) -> str:
    if not target.assets:
        return "--input: It works on no image, video or audio file. Leave --input out."
    names = " or ".join(f"--set {target.name(asset)}=FILE" for asset in sorted(target.assets))
    return f"--input: It has no one input that it works on. Name the file with {names}."


@contextmanager
def errors_as_options(anyway: str = "--anyway") -> Iterator[None]:
    """Add advice: missing requirements can be waited for with `anyway`."""
    try:
        yield
    except MissingOnWorkers as error:
        detail = error.detail.replace("add it anyway:", f"add it with {anyway}:")
        raise MissingOnWorkers(detail, missing=error.missing) from None


@contextmanager
def errors_as_typed(target: SubmitTarget, *, has_input: bool) -> Iterator[None]:
    """The API names properties and file ids; the command line has inputs and paths."""
    try:
        with errors_as_options():
            yield
    except InvalidInput as error:
        keys = {property_.key for property_ in target.properties}
        texts = [_as_typed(target, key, text, keys, has_input=has_input) for key, text in error.errors.items()]
        if None in texts or not texts:
            raise
        raise InvalidInput(" ".join(filter(None, dict.fromkeys(texts))), errors=error.errors) from None


def _as_typed(target: SubmitTarget, key: str, text: str, keys: Iterable[str], *, has_input: bool) -> str | None:
    """The message for an input; `None` for other fields."""
    item = _ITEM.fullmatch(key)
    key = item[2] if item else key
    if key not in keys:
        return None
    if key == target.primary and key not in target.files:
        if not has_input:
            return "It works on a file: name one with --input."
        return f"--input: {text}" if item is None else f"--input, item {int(item[1]) + 1}: {text}"
    if key in target.assets and key not in target.files and key not in target.values:
        return f"It needs one more file: name it with --set {target.name(key)}=FILE."
    return f"{target.name(key)}: {text}"


# Effects and workflows


async def workflow_named(client: Client, name: str) -> Workflow:
    found = [each for each in await client.workflows() if each.is_active]
    workflow = _named(found, name)
    if workflow is None:
        known = ", ".join(each.name for each in found) or "none"
        raise NotFound(f"There is no workflow {name!r} of yours. There are: {known}.")
    return workflow


def _named(workflows: Sequence[Workflow], what: str) -> Workflow | None:
    for workflow in workflows:
        if workflow.slug == what:
            return workflow
    found = [workflow for workflow in workflows if workflow.name == what]
    found = [each for each in found if each.is_active] or found
    if len(found) > 1:
        slugs = ", ".join(each.slug for each in found)
        raise InvalidInput(f"{len(found)} workflows are called {what!r}. Name the one you mean, newest first: {slugs}.")
    return found[0] if found else None


async def _names(client: Client) -> str:
    """The names of all targets; the slug if a name is ambiguous."""
    effects = [effect.slug for effect in await client.effects()]
    workflows = [workflow for workflow in await client.workflows() if workflow.is_active]
    names = [workflow.name for workflow in workflows]
    shown = [workflow.name if names.count(workflow.name) == 1 else workflow.slug for workflow in workflows]
    return ", ".join([*effects, *shown])


def _of_properties(named: dict[str, Any], what: Effect | Workflow, given: Sequence[str]) -> SubmitTarget:
    types = {property_.key: property_.type for property_ in what.properties}
    pairs = {_key(name, types): value for name, value in map(_pair, given)}
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


# Graphs

# While nodes of an editor file are missing, its inputs are unknown, so no job can wait for them.
_NO_JOB_YET = "No job can be made of it yet, with or without --anyway."
_RUNS_LATER = "It can be run once a worker has the nodes; add jobs then (`comfyrelay workflows`)."


@dataclass(frozen=True, slots=True)
class _Given:
    """A `--set` of a graph as typed, and its input: of a node, or of the workflow."""

    typed: str
    text: str
    node_id: str
    name: str

    @property
    def place(self) -> str:
        return f"{self.node_id}.{self.name}" if self.name else self.node_id


async def _what_can_be_kept(client: Client, path: Path) -> str:
    if any(workflow.name == path.stem and workflow.waiting is not None for workflow in await client.workflows()):
        return f"{_NO_JOB_YET} It is kept as {path.stem!r}. {_RUNS_LATER}"
    return f"{_NO_JOB_YET} `comfyrelay workflows add {path} --anyway` keeps it. {_RUNS_LATER}"


async def _of_graph(client: Client, path: Path, sets: Sequence[str]) -> SubmitTarget:
    from comfyrelay.comfyui.editor.loading import load_workflow

    try:
        described = await client.add_graph(load_workflow(path), name=path.stem)
    except MissingOnWorkers as error:
        why = error.detail.partition(" Or add it anyway:")[0]
        raise MissingOnWorkers(f"{why} {await _what_can_be_kept(client, path)}", missing=error.missing) from None
    graph = described.graph
    given = [_given(described, each) for each in sets]
    types = {property_.key: property_.type for property_ in described.workflow.properties}
    keys = _keys_of(described)
    by_key = {each.place: each for each in given if each.place in types}
    by_node = [each for each in given if each.place not in by_key]
    files = {
        each.place: _file(each.typed, each.text)
        for each in given
        if types.get(keys.get(each.place, each.place)) in _ASSETS
    }
    changed = _changed(graph, by_node, files)
    # a property that sets several inputs gives them the same value
    if any(len(described.positions.get(keys.get(each.place, ""), ())) != 1 for each in by_node):
        # a value that is no property, or one of several equal ones, changes the graph
        described = await client.add_graph(changed, name=path.stem)
        keys = _keys_of(described)
    # also unchanged values: a given seed is not drawn
    set_ = {each.place: changed[each.node_id]["inputs"][each.name] for each in by_node}
    values = {keys[place]: value for place, value in set_.items() if place in keys}
    values.update((key, _value(each.text, is_text=types[key] == "text")) for key, each in by_key.items())
    file_keys = {keys.get(place, place): file for place, file in files.items()}
    typed = {keys.get(each.place, each.place): each.typed for each in given}
    return SubmitTarget(
        named={"workflow_slug": described.workflow.slug},
        title=described.workflow.name,
        properties=described.workflow.properties,
        values={key: value for key, value in values.items() if key not in file_keys},
        files=file_keys,
        names={**{key: places[0] for key, places in described.positions.items() if places}, **typed},
        remarks=described.remarks,
    )


def _keys_of(described: DescribedGraph) -> dict[str, str]:
    return {place: key for key, places in described.positions.items() for place in places}


def _given(described: DescribedGraph, text: str) -> _Given:
    from comfyrelay.comfyui.graphs.nodes import find_node

    typed, value = _pair(text)
    node, _, name = typed.rpartition(".")
    if not node:
        return _Given(typed, value, _key(typed, described.positions, or_else="NODE.INPUT=VALUE"), "")
    if typed in described.positions:
        return _Given(typed, value, typed, "")
    node_id = find_node(described.graph, node)
    inputs = described.graph[node_id]["inputs"]
    if name not in inputs:
        raise GraphError(f"The node {node!r} has no input {name!r}. Its inputs: {', '.join(inputs) or 'none'}.")
    return _Given(typed, value, node_id, name)


def _changed(graph: Graph, given: Sequence[_Given], files: Mapping[str, Path | str]) -> Graph:
    changed: Graph = json.loads(json.dumps(graph))
    numbers = {file: number for number, file in enumerate(dict.fromkeys(files.values()))}
    for each in given:
        inputs = changed[each.node_id]["inputs"]
        if (file := files.get(each.place)) is not None:
            # any unique name: the graph gets the real one when it runs
            inputs[each.name] = f"file-{numbers[file]}{Path(str(inputs[each.name])).suffix}"
        else:
            inputs[each.name] = _value(each.text, is_text=isinstance(inputs[each.name], str))
    return changed


# Values


def _file(typed: str, text: str) -> Path | str:
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if _FILE_ID.fullmatch(text):
        return text
    raise InvalidInput(
        f"{typed}: There is no file {text!r} here. It is sent along from this machine, so give its path; "
        "what lies in ComfyUI's own input folder cannot be named."
    )


def _key(typed: str, known: Iterable[str], *, or_else: str = "") -> str:
    """The key, whole or by a unique suffix; `InvalidInput` lists the keys."""
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


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InvalidInput(f"Write NAME=VALUE, not {text!r}.")
    return name, value


def _value(text: str, *, is_text: bool) -> Any:
    """JSON numbers and booleans; everything else is text without quotes."""
    looks_like_json = r"\".*\"" if is_text else r"-?\d+(\.\d+)?([eE][+-]?\d+)?|true|false|null|\".*\""
    if re.fullmatch(looks_like_json, text):
        with suppress(ValueError):
            return json.loads(text)
    return text
