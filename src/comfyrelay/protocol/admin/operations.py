"""The admin API: load, storage, webhooks, reconciliation and settings."""

from datetime import datetime

from comfyrelay.domain.deliveries import DeliveryState
from comfyrelay.protocol.base import AnswerBody
from comfyrelay.protocol.fields import OpenEnum
from comfyrelay.protocol.records import EffectiveSetting, Inconsistency, StuckStep


class OverviewNow(AnswerBody):
    """The current load. `busy` of `slots` run a job, without offline workers. `wait_hour_seconds` is the mean
    wait of the jobs that started in the last hour; null if none did."""

    waiting: int
    oldest_wait_seconds: float
    running: int
    busy: int
    slots: int
    workers_online: int
    wait_hour_seconds: float | None
    done_hour: int
    failed_hour: int
    tokens_hour: int


class OverviewSeries(AnswerBody):
    """Aggregates per interval, which starts at `at`: means of gauges, sums of counters, null if unknown. `wait_seconds`
    is the mean wait of the jobs that started in it; if none did, the age of the oldest waiting job."""

    at: list[datetime]
    waiting: list[float | None]
    wait_seconds: list[float | None]
    done: list[int | None]
    failed: list[int | None]
    busy: list[float | None]
    slots: list[float | None]
    tokens: list[int | None]


class Overview(AnswerBody):
    range: str
    bucket_seconds: int
    now: OverviewNow
    series: OverviewSeries


class StorageTried(AnswerBody):
    """`problem` is null if it works."""

    part: str
    problem: str | None


class StorageCheck(AnswerBody):
    """The results of the server's checks, and URLs with which a browser can check uploads and downloads. The URLs are
    null if nothing can be stored."""

    url: str
    tried: list[StorageTried]
    upload_url: str | None
    upload_headers: dict[str, str] | None
    upload_text: str
    download_url: str | None


class TenantDelivery(AnswerBody):
    """A webhook delivery. `pending` was not attempted yet, `failing` will be retried, `dead` was given up."""

    id: str
    tenant_id: str
    tenant_email: str | None
    job_id: str
    url: str
    status: OpenEnum[DeliveryState]
    attempts: int
    next_attempt_at: datetime | None
    last_status_code: int | None
    last_error: str | None
    created_at: datetime
    delivered_at: datetime | None


class DeliveryCounts(AnswerBody):
    """`pending` counts all that are still to be delivered, failing ones included. A count equal to `most` may be
    higher."""

    dead: int
    pending: int
    most: int


class StuckSteps(AnswerBody):
    items: list[StuckStep]


class ReconcileRun(AnswerBody):
    """`ended_at` is null while it runs. Of `count` findings the first 1,000 are shown; `problem` is why it failed."""

    id: int
    started_at: datetime
    ended_at: datetime | None
    jobs: int | None
    count: int | None
    findings: list[Inconsistency]
    shards_down: list[str]
    problem: str | None


class Findings(AnswerBody):
    """`last` is the newest finished run, `running` the current one."""

    last: ReconcileRun | None
    running: ReconcileRun | None


class EffectiveSettings(AnswerBody):
    version: str
    items: list[EffectiveSetting]
