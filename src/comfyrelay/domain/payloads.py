"""The immutable payload of a job: what it runs, with which values and assets.

The graph is stored once under its content hash, so the payloads of a batch of 5,000 items are small rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from comfyrelay.domain.ids import digest
from comfyrelay.domain.properties import Property, PropertyType, Value
from comfyrelay.errors import InvalidInput

_KINDS = {PropertyType.IMAGE: "an image", PropertyType.VIDEO: "a video", PropertyType.AUDIO: "audio"}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """A file in object storage, as an asset refers to it."""

    id: str
    disk: str
    path: str
    mime_type: str
    name: str | None = None
    content_hash: str | None = None
    # The announced size.
    size: int | None = None
    # Whether a job has used the file before.
    is_used: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Asset:
    """A file that a worker downloads. Workers cache and share files with a hash, so a user's own file has none."""

    key: str
    placeholder: str
    type: str
    disk: str
    path: str
    content_hash: str | None
    is_primary_input: bool
    mime_type: str | None = None
    name: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPayload:
    """A graph, the values to insert, the assets to download, and the output node."""

    graph_path: str
    values: Mapping[str, Any]
    assets: Sequence[Asset]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    # Placeholders of seeds with their largest value; a retry may use new seeds.
    seeds: Mapping[str, int] = field(default_factory=dict)
    # Where the desk's user wants a copy of the output.
    output_folder: str | None = None
    # The worker stops a run that takes longer.
    max_run_seconds: int | None = None
    # Labels by which the user finds the job.
    metadata: Mapping[str, str] = field(default_factory=dict)
    # The servers that sent the job here.
    via: Sequence[str] = ()

    def with_seeds(self, new_seed: Callable[[int], int]) -> "JobPayload":
        """Return a copy with new seeds. `new_seed` receives the largest allowed value."""
        return replace(self, values={**self.values, **{key: new_seed(limit) for key, limit in self.seeds.items()}})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "JobPayload":
        return cls(**{**fields, "assets": [Asset(**asset) for asset in fields["assets"]]})

    @property
    def seed(self) -> int | None:
        """The first known seed, which is the main one."""
        seeds = (self.values.get(placeholder) for placeholder in self.seeds)
        return next((seed for seed in seeds if isinstance(seed, int)), None)

    @property
    def primary_input(self) -> Asset | None:
        return next((asset for asset in self.assets if asset.is_primary_input), None)


def fingerprint(payload: JobPayload, files: Iterable[StoredFile]) -> str | None:
    """Return a hash that is equal for jobs with the same graph, values and file contents.

    `None` means that the content of a file is unknown.
    """
    hashes = {(file.disk, file.path): file.content_hash for file in files}
    inputs = {asset.placeholder: asset.content_hash or hashes.get((asset.disk, asset.path)) for asset in payload.assets}
    if None in inputs.values():
        return None
    output = (payload.output_node_id, payload.output_extension, payload.output_mime_type)
    return digest([payload.graph_path, dict(payload.values), inputs, output])[:32]


def text_values(values: Sequence[Value]) -> dict[str, Any]:
    """Return the values that are inserted into the graph, by placeholder."""
    return {value.property.placeholder: value.value for value in values if not value.property.is_asset}


def asset_list(
    values: Sequence[Value],
    *,
    properties: Sequence[Property],
    primary: StoredFile | None,
    files: Mapping[str, StoredFile],
    catalogue_disk: str,
    catalogue_hashes: Mapping[str, str],
) -> list[Asset]:
    """Return the files that a worker must download.

    `files` are the user's own files by id. Other values are paths in the catalogue.
    """
    errors: dict[str, str] = {}
    assets: list[Asset] = []
    for property_ in properties:
        if property_.is_primary_input:
            if primary is not None:
                assets.append(_user_asset(property_, primary, errors))
            elif property_.required:
                errors[property_.key] = "This input is required: send input_file_id or video_id."
    for value in values:
        prop = value.property
        if not prop.is_asset or (prop.is_primary_input and primary is not None):
            continue
        if not value.from_user:
            assets.append(_catalogue_asset(value, catalogue_disk, catalogue_hashes))
        elif value.value in files:
            assets.append(_user_asset(prop, files[value.value], errors))
        else:
            errors[prop.key] = "You have no such file."
    if errors:
        raise InvalidInput(errors=errors)
    return assets


def _user_asset(prop: Property, file: StoredFile, errors: dict[str, str]) -> Asset:
    if not file.mime_type.startswith(f"{prop.type}/"):
        errors[prop.key] = f"This must be {_KINDS[prop.type]}, but the file is {file.mime_type}."
    return Asset(
        key=prop.key,
        placeholder=prop.placeholder,
        type=prop.type,
        disk=file.disk,
        path=file.path,
        content_hash=None,
        is_primary_input=prop.is_primary_input,
        mime_type=file.mime_type,
        name=file.name,
    )


def _catalogue_asset(value: Value, disk: str, hashes: Mapping[str, str]) -> Asset:
    prop = value.property
    is_default = value.value == prop.default_value
    return Asset(
        key=prop.key,
        placeholder=prop.placeholder,
        type=prop.type,
        disk=disk,
        path=value.value,
        content_hash=prop.default_value_hash if is_default else hashes.get(value.value),
        is_primary_input=prop.is_primary_input,
    )
