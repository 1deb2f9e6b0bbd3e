"""What can be run: workflows, the effects made of them, and presets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from comfyrelay.domain.states import WorkflowProvider


@dataclass(frozen=True, kw_only=True, slots=True)
class Workflow:
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
    created_at: datetime
    updated_at: datetime

    @property
    def may_run_at(self) -> WorkflowProvider:
        return WorkflowProvider.ANY if self.may_burst else WorkflowProvider(self.provider)


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    id: int
    slug: str
    name: str
    workflow_id: int
    property_overrides: Mapping[str, Any]
    asset_hashes: Mapping[str, str]
    credits_cost: int
    is_active: bool
    last_processing_time_seconds: float | None
    max_wait_seconds: int | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    id: str
    name: str
    settings: Mapping[str, Any]
    created_at: datetime
