"""Pack, verify and merge the node definitions (`/object_info`) that workers send to a server."""

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfyui.graphs.node_definition_checks import valid_definitions, weight
from comfyrelay.comfyui.graphs.preflight import choices_of, input_specs, is_upload
from comfyrelay.errors import InvalidInput
from comfyrelay.json_size import has_more_values

# A ComfyUI with a hundred node packs has a third of these two limits.
MAX_BYTES = 16 * 1024**2
MAX_VALUES = 1_000_000
# In memory, for all workers together. Further definitions are ignored.
MAX_MERGED_BYTES = 256 * 1024**2


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedDefinitions:
    sha256: str
    text: bytes

    @property
    def data(self) -> bytes:
        """The compressed data. Computed only when needed, because compression takes longer than all other steps."""
        return gzip.compress(self.text, mtime=0)


def pack(definitions: Mapping[str, Any]) -> PackedDefinitions:
    """Pack node definitions, so that equal definitions give equal data on every worker.

    Lists of uploaded files are removed: they change with each job and contain users' file names.
    """
    # Sort only the classes: the editor saves a node's values in the order of its inputs.
    shared = {name: _without_files(definitions[name]) for name in sorted(definitions)}
    text = json.dumps(shared, separators=(",", ":")).encode()
    return PackedDefinitions(sha256=hashlib.sha256(text).hexdigest(), text=text)


def unpack(data: bytes, *, sha256: str) -> dict[str, Any]:
    """Unpack node definitions and reduce them to the expected shape.

    Raises `InvalidInput` if the hash is wrong, or they are too large or not node definitions.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        raise InvalidInput("The data is not complete gzip data.") from None
    if len(text) > MAX_BYTES:
        raise InvalidInput(f"Node definitions must have at most {MAX_BYTES // 1024**2} MiB.")
    if hashlib.sha256(text).hexdigest() != sha256:
        raise InvalidInput("The content does not match its hash: send the SHA-256 of the JSON text before compression.")
    if has_more_values(text, MAX_VALUES):
        raise InvalidInput(f"Node definitions must have at most {MAX_VALUES:,} values.")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(definition, dict) for definition in found.values()):
        raise InvalidInput("These are not node definitions: send ComfyUI's response of /object_info.")
    return valid_definitions(found)


class Merging:
    """Merge several sets of node definitions, newest first.

    The first definition of a class wins, with the choices of all.
    """

    def __init__(self, *, max_bytes: int = MAX_MERGED_BYTES) -> None:
        self.merged: dict[str, Any] = {}
        self._room = max_bytes

    def add(self, definitions: Mapping[str, Any]) -> None:
        for name, definition in definitions.items():
            is_new = name not in self.merged
            more = {} if is_new else _more_choices(self.merged[name], definition)
            size = weight(definition if is_new else more)
            if size <= self._room and (is_new or more):
                self.merged[name] = definition if is_new else _with_choices(self.merged[name], more)
                self._room -= size


def merge(newest_first: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge sets of node definitions, newest first."""
    merging = Merging()
    for definitions in newest_first:
        merging.add(definitions)
    return merging.merged


def _without_files(definition: Any) -> Any:
    files = [name for name, spec in input_specs(definition) if is_upload(spec) and choices_of(spec)]
    return _with_choices(definition, {name: [] for name in files}) if files else definition


def _more_choices(first: Any, other: Any) -> dict[str, list[Any]]:
    """Return the combined choices of each input for which the other definition has additional choices."""
    others = dict(input_specs(other))
    more = {}
    for name, spec in input_specs(first):
        choices, added = choices_of(spec), choices_of(others[name]) if name in others else None
        if choices is not None and added and (new := list(_new_choices(choices, added))):
            more[name] = [*choices, *new]
    return more


def _new_choices(choices: Sequence[Any], added: Sequence[Any]) -> Iterator[Any]:
    # In newer nodes, choices may be objects, which are not hashable.
    known = {json.dumps(choice, sort_keys=True) for choice in choices}
    return (choice for choice in added if json.dumps(choice, sort_keys=True) not in known)


def _with_choices(definition: Any, choices: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {
        **definition,
        "input": {
            part: {name: _with(spec, choices[name]) if name in choices else spec for name, spec in specs.items()}
            if part in ("required", "optional") and isinstance(specs, dict)
            else specs
            for part, specs in definition["input"].items()
        },
    }


def _with(spec: Sequence[Any], choices: Sequence[Any]) -> Any:
    if not isinstance(spec, list) or choices_of(spec) is None:
        return spec
    if isinstance(spec[0], list):
        return [list(choices), *spec[1:]]
    return [spec[0], {**spec[1], "options": list(choices)}, *spec[2:]]
