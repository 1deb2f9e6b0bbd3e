"""Find outages around this server in the background, so that operators see them even while a database is down."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.domain.queue.wait_reasons import format_duration
from comfyrelay.errors import ComfyRelayError
from comfyrelay.services.databases import Databases
from comfyrelay.services.operations.readiness import SCHEMA_PROBLEMS, STORAGE, Readiness
from comfyrelay.settings import Settings
from comfyrelay.system.disks import disk_usage

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 5.0
CERTIFICATE_SECONDS = 3600.0
# A disk is nearly full if less than this share and less than this size are free.
MIN_FREE_SHARE = 0.1
MIN_FREE_BYTES = 5 * 1024**3
MAX_SKEW = timedelta(seconds=30)
MIN_CERTIFICATE_TIME = timedelta(days=14)


class OutageKind(StrEnum):
    CENTRAL = "central"
    SHARD = "shard"
    SCHEMA = "schema"
    STORAGE = "storage"
    DISK = "disk"
    CLOCK = "clock"
    CERTIFICATE = "certificate"
    # Used only in alerts: the overview shows these problems in its own way.
    COMFYUI = "comfyui"
    WORKER = "worker"
    UNRUNNABLE = "unrunnable"
    LAUNCHES = "launches"


# Problems that count for alerts only once two consecutive checks have found them, because a busy machine, such as one
# that has just started the server, may miss the time limit of a single check.
_CONFIRMED_KINDS = frozenset({OutageKind.CENTRAL, OutageKind.SHARD})
# For each kind, the consequences for customers, and advice for operators.
_TEXTS = {
    OutageKind.CENTRAL: (
        "Customers cannot sign in or start jobs. Running jobs continue, and are stored once it is back.",
        "Start the database, and check COMFYRELAY_DATABASE_URL and the network. This server reconnects automatically.",
    ),
    OutageKind.SHARD: (
        "Its customers cannot see or start jobs. Customers in other databases are not affected.",
        "Start this database, and check its URL in COMFYRELAY_SHARDS. This server reconnects automatically.",
    ),
    OutageKind.SCHEMA: (
        "Customers of this database get errors until it is upgraded.",
        "Run `comfyrelay db status`, then `comfyrelay db upgrade` with the version of this server.",
    ),
    OutageKind.STORAGE: (
        "Customers cannot upload files or see results. Finished jobs wait until their results can be stored.",
        "Check COMFYRELAY_STORAGE_URL and the storage service with its credentials, or the disk of the folder.",
    ),
    OutageKind.DISK: (
        "Once it is full, uploads and new jobs fail.",
        "Free or add space, or keep outputs for a shorter time (COMFYRELAY_RETENTION_DAYS).",
    ),
    OutageKind.CLOCK: (
        "Links to files may be refused, and times on pages are wrong.",
        "Synchronise the clocks of this machine and of the database, with NTP.",
    ),
    OutageKind.CERTIFICATE: (
        "Without a valid certificate, browsers and workers refuse to connect.",
        "Renew the certificate of the proxy that serves this address.",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """A problem of one part. `means` describes the consequences for customers; `advice` is for operators."""

    kind: OutageKind
    name: str
    detail: str
    means: str
    advice: str
    # Whether customers are currently affected.
    is_severe: bool
    since: datetime


class Outages:
    """The problems found in the last check of this process. Reading them needs no database."""

    def __init__(
        self, settings: Settings, databases: Databases, readiness: Readiness, *, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._settings = settings
        self._databases = databases
        self._readiness = readiness
        self._clock = clock
        self._certificate: tuple[str, bool] | None = None
        self._certificate_due = 0.0
        self.current: Sequence[Outage] = ()
        # The problems for alerts.
        self.confirmed: Sequence[Outage] = ()
        self.checked_at: datetime | None = None

    @property
    def is_central_down(self) -> bool:
        return any(outage.kind is OutageKind.CENTRAL for outage in self.current)

    async def run_once(self) -> None:
        since = {(outage.kind, outage.name): outage.since for outage in self.current}
        found = [
            replace(outage, since=since.get((outage.kind, outage.name), outage.since)) async for outage in self._find()
        ]
        for outage in found:
            if (outage.kind, outage.name) not in since:
                log.warning("outage.began", kind=outage.kind, name=outage.name, why=outage.detail)
        self.confirmed = [
            outage for outage in found if outage.kind not in _CONFIRMED_KINDS or (outage.kind, outage.name) in since
        ]
        self.current, self.checked_at = found, self._clock()

    async def _find(self) -> AsyncIterator[Outage]:
        for name, problem in (await self._readiness.problems()).items():
            yield self._outage(self._outage_kind(name, problem), name, problem)
        if (skew := await self._skew()) is not None and abs(skew) > MAX_SKEW:
            seconds = format_duration(abs(skew).total_seconds())
            direction = "ahead of" if skew > timedelta(0) else "behind"
            text = f"The clock of this machine is {seconds} {direction} the clock of the database."
            yield self._outage(OutageKind.CLOCK, "clock", text)
        for folder in self._folders():
            if (detail := await _disk_problem(folder)) is not None:
                yield self._outage(OutageKind.DISK, str(folder), detail, is_severe=False)
        if (problem_and_severity := await self._certificate_problem()) is not None:
            detail, is_severe = problem_and_severity
            yield self._outage(OutageKind.CERTIFICATE, self._settings.base_url, detail, is_severe=is_severe)

    def _outage_kind(self, name: str, problem: str) -> OutageKind:
        if name == STORAGE:
            return OutageKind.STORAGE
        if problem in SCHEMA_PROBLEMS:
            return OutageKind.SCHEMA
        return OutageKind.CENTRAL if name == self._databases.central.name else OutageKind.SHARD

    def _outage(self, kind: OutageKind, name: str, detail: str, *, is_severe: bool = True) -> Outage:
        means, advice = _TEXTS[kind]
        return Outage(
            kind=kind, name=name, detail=detail, means=means, advice=advice, is_severe=is_severe, since=self._clock()
        )

    async def _skew(self) -> timedelta | None:
        """Return how far this machine's clock is ahead of the database's; `None` if the database does not answer."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), self._databases.central.read() as tx:
                asked_at = self._clock()
                now = await tx.now()
                # The database answered at some moment in between.
                return asked_at + (self._clock() - asked_at) / 2 - now
        except (ComfyRelayError, TimeoutError):
            return None

    def _folders(self) -> list[Path]:
        """Return the folders that this server writes to."""
        urls = [self._settings.objects_url, self._settings.central_url, *self._settings.shard_urls.values()]
        parts = [urlsplit(url) for url in urls]
        local = [Path(url2pathname(part.path)) for part in parts if part.scheme in {"file", "sqlite"}]
        return sorted({self._settings.data_dir, *(path if path.is_dir() else path.parent for path in local)})

    async def _certificate_problem(self) -> tuple[str, bool] | None:
        """Check the certificate of the public address from time to time."""
        url, now = urlsplit(self._settings.base_url), asyncio.get_running_loop().time()
        if url.scheme != "https" or url.hostname is None:
            return None
        if now >= self._certificate_due:
            self._certificate = await certificate_problem(url.hostname, url.port or 443, now=self._clock())
            # A broken certificate is checked again soon, because it will be replaced.
            self._certificate_due = now + (CERTIFICATE_SECONDS if self._certificate is None else 60.0)
        return self._certificate


async def certificate_problem(
    host: str, port: int, *, now: datetime, context: ssl.SSLContext | None = None
) -> tuple[str, bool] | None:
    """Return the problem with the certificate of a server, and whether the certificate is already invalid. Returns
    `None` if the server does not answer, which is a different problem."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            _reader, writer = await asyncio.open_connection(host, port, ssl=context or ssl.create_default_context())
    except ssl.SSLCertVerificationError as error:
        return f"The certificate of {host} is not valid: {error.verify_message}.", True
    except (OSError, TimeoutError):
        return None
    try:
        expires = ssl.cert_time_to_seconds(str(writer.get_extra_info("peercert")["notAfter"]))
    finally:
        writer.close()
    left = datetime.fromtimestamp(expires, UTC) - now
    if left > MIN_CERTIFICATE_TIME:
        return None
    return f"The certificate of {host} expires in {max(left.days, 0)} days.", False


async def _disk_problem(folder: Path) -> str | None:
    try:
        # A network disk may hang.
        async with asyncio.timeout(TIMEOUT_SECONDS):
            total, free = await asyncio.to_thread(disk_usage, folder)
    except TimeoutError:
        return f"The disk of {folder} does not answer."
    except OSError:
        return None
    if free >= MIN_FREE_BYTES or free >= total * MIN_FREE_SHARE:
        return None
    return f"The disk of {folder} is nearly full: {free / 1024**3:.1f} GiB of {total / 1024**3:.0f} GiB are free."
