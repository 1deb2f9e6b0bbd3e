"""Records of workflows, effects and presets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from comfyrelay.domain.capabilities import RequirementKind
from comfyrelay.domain.properties import Property, list_names
from comfyrelay.domain.queue.states import WorkflowProvider


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingForNodes:
    """Why a workflow has no graph yet: nodes that no worker has, or a problem found once all nodes were known.
    `packages` has the known packages of these nodes."""

    node_types: Sequence[str]
    problem: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        if self.problem is not None:
            return f"The workflow cannot be read: {self.problem} Replace or remove it."
        return (
            f"Waiting for nodes that no worker has: {list_names(self.node_types)}. "
            "Once a worker has them, the inputs are known and jobs can be added."
        )

    @property
    def missing(self) -> list[dict[str, Any]]:
        other = {"kind": RequirementKind.NODE, "workers": 0, "on": []}
        return [{**other, "name": name, "source": self.packages.get(name)} for name in self.node_types]

    @classmethod
    def from_missing(cls, missing: Sequence[Mapping[str, Any]]) -> "WaitingForNodes":
        """Create the object from its `missing` list."""
        packages = {item["name"]: item["source"] for item in missing if item["source"] is not None}
        return cls(node_types=[item["name"] for item in missing], packages=packages)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowRecord:
    id: int
    slug: str
    name: str
    tenant_id: str | None
    kind: str
    provider: str
    may_burst: bool
    self_hosted_micros_per_second: int | None
    cloud_micros_per_second: int | None
    burst_micros_per_hour: int | None
    graph_path: str
    properties: Sequence[Mapping[str, Any]]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    is_active: bool
    keep_loaded: bool
    waiting: Mapping[str, Any] | None
    created_at: datetime
    updated_at: datetime
    # Whether it was created only for the graph of submitted jobs.
    is_unlisted: bool = False

    @property
    def parsed_properties(self) -> list[Property]:
        """Return the stored properties without checks: the rules may have become stricter."""
        return [Property.from_json(fields) for fields in self.properties]

    @property
    def waits_for(self) -> WaitingForNodes | None:
        return None if self.waiting is None else WaitingForNodes(**self.waiting)

    @property
    def may_run_at(self) -> WorkflowProvider:
        return WorkflowProvider.ANY if self.may_burst else WorkflowProvider(self.provider)


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectRecord:
    id: int
    slug: str
    name: str
    workflow_id: int
    property_overrides: Mapping[str, Any]
    asset_hashes: Mapping[str, str]
    # The price, or the minimum price if there is a formula.
    credits_cost: int
    price_formula: str | None
    max_credits_cost: int | None
    is_active: bool
    last_processing_time_seconds: float | None
    max_wait_seconds: int | None
    max_run_seconds: int
    description: str | None
    category: str | None
    position: int
    preview_path: str | None
    before_path: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowVersionRecord:
    """A version of a workflow, used since `created_at`."""

    number: int
    graph_path: str
    properties: Sequence[Mapping[str, Any]]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PresetRecord:
    id: str
    name: str
    settings: Mapping[str, Any]
    created_at: datetime
