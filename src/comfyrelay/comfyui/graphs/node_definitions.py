"""The definitions of nodes (`/object_info`), as they go from a worker to a server: packed, named by their content."""

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfyui.graphs.node_definition_checks import in_shape, weight
from comfyrelay.comfyui.graphs.preflight import choices_of, input_specs, is_upload
from comfyrelay.errors import InvalidInput
from comfyrelay.json_size import has_more_values

# A ComfyUI with a hundred node packs has a third of this,
MOST_BYTES = 16 * 1024**2
# and of this.
MOST_VALUES = 1_000_000
# In memory, of all workers together; what has no room there is as good as absent.
MOST_MERGED_BYTES = 256 * 1024**2


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedDefinitions:
    sha256: str
    text: bytes

    @property
    def data(self) -> bytes:
        """Compressed; it takes longer than all the rest."""
        return gzip.compress(self.text, mtime=0)


def pack(definitions: Mapping[str, Any]) -> PackedDefinitions:
    """The same definitions are packed the same way by every worker.

    Lists of uploaded files are left out: they change with each job, and name what is somebody's.
    """
    # only the classes may be put in order: the editor saves the values of a node in the order of its inputs
    shared = {name: _without_files(definitions[name]) for name in sorted(definitions)}
    text = json.dumps(shared, separators=(",", ":")).encode()
    return PackedDefinitions(sha256=hashlib.sha256(text).hexdigest(), text=text)


def unpack(data: bytes, *, sha256: str) -> dict[str, Any]:
    """Held to the shape in which they are read. `InvalidInput` when it is not what it is named, too large, or no
    definitions."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        raise InvalidInput("This is not compressed with gzip, or not whole.") from None
    if len(text) > MOST_BYTES:
        raise InvalidInput(f"Definitions have at most {MOST_BYTES // 1024**2} MiB.")
    if hashlib.sha256(text).hexdigest() != sha256:
        raise InvalidInput(
            "This is not what its hash says: send the SHA-256 of the JSON text, before it is compressed."
        )
    if has_more_values(text, MOST_VALUES):
        raise InvalidInput(f"Definitions have at most {MOST_VALUES:,} values.")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise InvalidInput("These are not definitions of nodes: send what ComfyUI answers at /object_info.")
    return in_shape(found)


class Merging:
    """One set of definitions out of several, newest first: of each class the first, which may choose what any of them
    may."""

    def __init__(self, *, most_bytes: int = MOST_MERGED_BYTES) -> None:
        self.merged: dict[str, Any] = {}
        self._room = most_bytes

    def add(self, definitions: Mapping[str, Any]) -> None:
        for name, definition in definitions.items():
            known = self.merged.get(name)
            more = _more_choices(known, definition) if name in self.merged else {}
            size = weight(definition if name not in self.merged else more)
            if size > self._room:
                continue
            if name not in self.merged:
                self.merged[name] = definition
            elif more:
                self.merged[name] = _with_choices(known, more)
            else:
                continue
            self._room -= size


def merge(newest_first: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What `Merging` makes of them."""
    merging = Merging()
    for definitions in newest_first:
        merging.add(definitions)
    return merging.merged


def _without_files(definition: Any) -> Any:
    files = [name for name, spec in input_specs(definition) if is_upload(spec) and choices_of(spec)]
    return _with_choices(definition, {name: [] for name in files}) if files else definition


def _more_choices(first: Any, other: Any) -> dict[str, list[Any]]:
    """All the choices of each input that has some more in the other definition."""
    others = dict(input_specs(other))
    more = {}
    for name, spec in input_specs(first):
        choices, added = choices_of(spec), choices_of(others[name]) if name in others else None
        if choices is not None and added and (new := list(_not_in(choices, added))):
            more[name] = [*choices, *new]
    return more


def _not_in(choices: Sequence[Any], added: Sequence[Any]) -> Iterator[Any]:
    # newer nodes have objects as choices, which have no hash
    known = {json.dumps(each, sort_keys=True) for each in choices}
    return (each for each in added if json.dumps(each, sort_keys=True) not in known)


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
