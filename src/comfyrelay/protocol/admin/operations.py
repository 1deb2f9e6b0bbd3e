"""The admin API: load, storage, webhooks, reconciliation and settings."""

from datetime import datetime

from comfyrelay.domain.deliveries import DeliveryState
from comfyrelay.protocol.base import AnswerBody
from comfyrelay.protocol.fields import OpenEnum
from comfyrelay.protocol.records import EffectiveSetting, Inconsistency
from comfyrelay.protocol.user import DeliveryAttempts


class OverviewNow(AnswerBody):
    """The current load. `waiting` is the number of queued jobs that a worker or an autoscaled fleet can run;
    `waiting_offline` is the number of those that only offline workers can run. `unrunnable` is the number of all other
    queued jobs, which wait until a worker meets their requirements.
    `busy` is the number of slots that run a job, `slots` the number of all slots of online workers. `wait_hour_seconds`
    is the mean wait of the jobs that started in the last hour, or null."""

    waiting: int
    waiting_offline: int
    unrunnable: int
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
    """Values per interval; `at` are the starts of the intervals. `waiting`, `busy` and `slots` are means, `done`,
    `failed` and `tokens` are sums. `wait_seconds` is the mean wait of the jobs that started in the interval, or else
    the age of the oldest waiting job. Unknown values are null."""

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


class OutageView(AnswerBody):
    """A problem of a part that this server needs. `means` describes the effect on customers, and `advice` the remedy.
    `is_severe`: customers notice it now."""

    kind: str
    name: str
    detail: str
    means: str
    advice: str
    is_severe: bool
    since: datetime


class OutageList(AnswerBody):
    """The problems that this server process found at `checked_at`, null before its first check."""

    items: list[OutageView]
    checked_at: datetime | None


class StorageCheckPart(AnswerBody):
    """A check of the storage. `part` is the checked operation; `problem` is null if it works."""

    part: str
    problem: str | None


class StorageCheck(AnswerBody):
    """The results of the server's checks, and URLs for a browser to check uploads and downloads. The URLs are null if
    the server cannot store files."""

    url: str
    checks: list[StorageCheckPart]
    upload_url: str | None
    upload_headers: dict[str, str] | None
    upload_text: str
    download_url: str | None


class TenantDelivery(DeliveryAttempts):
    """A webhook delivery. `pending`: not attempted yet; `failing`: will be retried; `dead`: will not be retried."""

    tenant_id: str
    tenant_email: str | None
    status: OpenEnum[DeliveryState]


class DeliveryCounts(AnswerBody):
    """The number of deliveries. `pending` includes failing ones. If a count equals `max_counted`, the real number may
    be higher."""

    dead: int
    pending: int
    max_counted: int


class ReconcileRun(AnswerBody):
    """A run of the reconciler. `ended_at` is null during the run. `findings` are the first 1,000
    of `count` findings. `problem` is the reason why the run failed."""

    id: int
    started_at: datetime
    ended_at: datetime | None
    jobs: int | None
    count: int | None
    findings: list[Inconsistency]
    shards_down: list[str]
    problem: str | None


class LatestReconcileRuns(AnswerBody):
    """`last` is the last finished run, `running` the current run; both may be null."""

    last: ReconcileRun | None
    running: ReconcileRun | None


class EffectiveSettings(AnswerBody):
    version: str
    items: list[EffectiveSetting]


class AlertRuleView(AnswerBody):
    """An alert rule. `name` is the kind of problem, or `*` for all others. `failures` maps each receiver that the last
    alert did not reach to the reason."""

    name: str
    urls: list[str]
    quiet_minutes: float
    last_sent_at: datetime | None
    failures: dict[str, str]


class AlertTest(AnswerBody):
    failures: dict[str, str]
