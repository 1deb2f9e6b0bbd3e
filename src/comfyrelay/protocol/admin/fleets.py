"""The admin API: fleets, their metrics and usage."""

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
from comfyrelay.protocol.admin.fields import Patch, Slug, Unchanging
from comfyrelay.protocol.base import AnswerBody, Request, example
from comfyrelay.protocol.fields import Line, OpenEnum, Whole


def _refuse_mapping(_value: object) -> None:
    raise ValueError("Workflows are mapped by PUT /api/admin/fleets/{stage}/{slug}/workflows.")


# Known, so that the error can name the right request.
MappedElsewhere = SkipJsonSchema[Annotated[None, BeforeValidator(_refuse_mapping)]]
WorkerLimit = Annotated[Whole, Field(ge=0, le=1_000_000)]


class NewFleet(Request):
    """Without `max_workers` the server's limit applies."""

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

    slug: Unchanging = None
    stage: Unchanging = None
    workflow_slugs: MappedElsewhere = None
    name: Line | None = None
    max_workers: WorkerLimit | None = None
    machines: FleetMachines | None = None
    autoscaling: FleetAutoscaling | None = None


class FleetMapping(Request):
    model_config = example(workflow_slugs=["text-to-image", "face-swap"])

    workflow_slugs: list[Slug] = Field(max_length=1000)
    force: Annotated[bool, Field(description="also despite missing requirements")] = False


class Fleet(AnswerBody):
    """`machines` and `autoscaling` are null until they are configured."""

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
    """`completed`, `failed` and the mean duration cover the last hour."""

    queued: int
    oldest_age_seconds: float | None
    completed: int
    failed: int
    mean_duration_seconds: float | None


class WorkflowMetrics(QueueMetrics):
    """One workflow at the fleet's stage. Other fleets of the stage may have run some of its jobs."""

    workflow_slug: str


class FleetMetrics(QueueMetrics):
    workers: dict[OpenEnum[WorkerState], int]
    leases: int
    workflows: list[WorkflowMetrics]


class Usage(AnswerBody):
    """`name` is the slug of the fleet or workflow, or the id of the tenant. `cost` covers busy and lost seconds;
    `machine_cost` is the whole cost of a fleet's machines. Idle and boot seconds and `machine_cost` are null without
    machines."""

    name: str
    stage: OpenEnum[Stage] | None
    jobs: int
    busy_seconds: float
    lost_seconds: float
    cost: float
    idle_seconds: float | None
    boot_seconds: float | None
    machine_cost: float | None


class JoinCommand(AnswerBody):
    """The command that makes a machine a worker of a fleet. It contains the secret of its stage. `command` is for Linux
    and macOS shells, `powershell` for Windows, and `variables` are its environment. Run `install` once before it, in a
    clone of this version."""

    install: str
    command: str
    powershell: str
    variables: dict[str, str]
