"""The admin API: fleets with their metrics and usage."""

from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from comfyrelay.domain.queue.states import Stage, WorkerState
from comfyrelay.protocol.admin.autoscaling import (
    FleetAutoscaling,
    FleetAutoscalingDetails,
    FleetMachines,
    FleetMachinesDetails,
)
from comfyrelay.protocol.admin.fields import Immutable, Patch, Slug
from comfyrelay.protocol.base import AnswerBody, Request, example
from comfyrelay.protocol.fields import Line, OpenEnum, StrictInt


def _refuse_mapping(_value: object) -> None:
    raise ValueError("Change workflows with PUT /api/admin/fleets/{stage}/{slug}/workflows.")


# Declared, so that the error names the right request.
MappedElsewhere = SkipJsonSchema[Annotated[None, BeforeValidator(_refuse_mapping)]]
WorkerLimit = Annotated[StrictInt, Field(ge=0, le=1_000_000)]


class NewFleet(Request):
    """A new fleet. Without `max_workers`, the limit of the server applies."""

    model_config = example(slug="home", max_workers=10, workflow_slugs=["text-to-image"])

    slug: Slug
    stage: Stage = Stage.PRODUCTION
    name: Line | None = None
    max_workers: WorkerLimit | None = None
    machines: FleetMachines | None = None
    autoscaling: FleetAutoscaling | None = None
    workflow_slugs: list[Slug] = Field(default_factory=list, max_length=1000)
    force: Annotated[bool, Field(description="map workflows despite missing requirements")] = False


class FleetPatch(Patch):
    model_config = example(max_workers=20)

    may_be_null: ClassVar[frozenset[str]] = frozenset({"max_workers", "machines", "autoscaling"})

    slug: Immutable = None
    stage: Immutable = None
    workflow_slugs: MappedElsewhere = None
    name: Line | None = None
    max_workers: WorkerLimit | None = None
    machines: FleetMachines | None = None
    autoscaling: FleetAutoscaling | None = None


class FleetMapping(Request):
    model_config = example(workflow_slugs=["text-to-image", "face-swap"])

    workflow_slugs: list[Slug] = Field(max_length=1000)
    force: Annotated[bool, Field(description="map workflows despite missing requirements")] = False


class Fleet(AnswerBody):
    """A fleet. `workers` is the number of its workers. `machines` and `autoscaling` are null until configured."""

    id: int
    slug: str
    stage: OpenEnum[Stage]
    name: str
    max_workers: int | None
    machines: FleetMachinesDetails | None = None
    autoscaling: FleetAutoscalingDetails | None = None
    workflow_slugs: list[str]
    workers: int
    created_at: datetime


class QueueMetrics(AnswerBody):
    """The queue and its throughput. `completed`, `failed` and the mean duration refer to the last hour."""

    queued: int
    oldest_age_seconds: float | None
    completed: int
    failed: int
    mean_duration_seconds: float | None


class WorkflowMetrics(QueueMetrics):
    """A workflow at the stage of the fleet. Other fleets of the stage may have run some of the jobs."""

    workflow_slug: str


class FleetMetrics(QueueMetrics):
    workers: dict[OpenEnum[WorkerState], int]
    leases: int
    workflows: list[WorkflowMetrics]


class Usage(AnswerBody):
    """The usage of a fleet, workflow or tenant. `name` is the slug of the fleet or workflow, or the id of the tenant.
    `unpriced_seconds` of the busy and lost seconds ran on machines without a price, and `cost` is the cost of the
    others. `machine_cost` is the whole cost of a fleet's machines. `idle_seconds`, `boot_seconds` and `machine_cost`
    are null without machines."""

    name: str
    stage: OpenEnum[Stage] | None
    jobs: int
    busy_seconds: float
    lost_seconds: float
    unpriced_seconds: float
    cost: float
    idle_seconds: float | None
    boot_seconds: float | None
    machine_cost: float | None


class JoinCommand(AnswerBody):
    """The command that starts a worker of a fleet on a machine. It contains the secret of the stage. `install` (run it
    once, in a clone of this version) and `command` are for Linux and macOS; the Windows commands are in the other two
    fields. `variables` are the environment variables of both commands."""

    install: str
    powershell_install: str
    command: str
    powershell: str
    variables: dict[str, str]
