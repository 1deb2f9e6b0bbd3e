"""Notifications through apprise: desktop, webhooks, Telegram, mail and many more.

URLs contain passwords and tokens and are never shown or logged: messages name the service, or the host of a webhook.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from comfyrelay.protocol.desk import NotificationEvent
from comfyrelay.system.platform import pick

__all__ = [
    "BatchNow",
    "EndedNotice",
    "Notification",
    "NotificationRules",
    "Notifier",
    "NotificationEvent",
    "SendingFailure",
    "why_unusable",
    "without_secrets",
]

DESKTOP = "desktop://"
_THIS_DESKTOP = pick(windows="windows://", macos="macosx://", others="dbus://")
# For other services the host part may be a token.
_WEBHOOKS = frozenset({"form", "forms", "json", "jsons", "xml", "xmls"})
_SHORTEST_SECRET = 3
_LOGGERS = ("apprise", "urllib3.connectionpool")
# Its own threads, so that slow services do not block others.
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="notify")


@dataclass(frozen=True, kw_only=True, slots=True)
class Notification:
    """`batch_id` is set for a batch, so that its subscribers are notified, too."""

    occasion: NotificationEvent
    title: str
    body: str
    batch_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SendingFailure:
    """`url` is safe to show; `url_given` is not."""

    url: str
    why: str
    url_given: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedNotice:
    """An ended job; `name` is its display name."""

    name: str
    status: str
    completed_at: datetime
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchNow:
    """A batch: its items by status, counting the newest attempt of each, and why the rest is held, if it is."""

    id: str
    name: str
    counts: Mapping[str, int]
    held: str | None = None
    held_by: str | None = None

    @property
    def is_over(self) -> bool:
        return not any(self.counts.get(each, 0) for each in ("queued", "processing", "paused"))


class NotificationRules:
    """Decides which ends trigger a notification.

    A single job does. A batch does when its last item ends, and when a failure holds the rest. An empty queue does.
    Cancellations do not.
    """

    def __init__(self) -> None:
        # time of the last notification, by batch; None is the whole queue
        self._notified_at: dict[str | None, datetime] = {}
        # by batch, the failure that held it and was notified
        self._held_by: dict[str, str | None] = {}

    def of_end(self, job: EndedNotice, batch: BatchNow | None, *, active: int, read_at: datetime) -> list[Notification]:
        """`batch` and `active` (queued and running jobs) as of `read_at`, by the database's clock."""
        found = []
        if batch is None:
            found += _of_job(job)
        elif batch.held is not None and not batch.is_over:
            if self._held_by.get(batch.id) == batch.held_by:
                return []
            self._held_by[batch.id] = batch.held_by
            # nothing runs now, and the notification says why
            return [_of_hold(batch, batch.held)]
        elif batch.is_over and self._is_new(batch.id, job, read_at):
            found += _of_batch(batch)
        if not active and self._is_new(None, job, read_at):
            found.append(
                Notification(
                    occasion=NotificationEvent.QUEUE_EMPTY, title="The queue is empty", body=f"The last was {job.name}."
                )
            )
        return found

    def _is_new(self, about: str | None, job: EndedNotice, read_at: datetime) -> bool:
        """Several jobs may end before the first is processed: one notification covers them."""
        notified_at = self._notified_at.get(about)
        if notified_at is not None and job.completed_at <= notified_at:
            return False
        self._notified_at[about] = read_at
        return True


def _of_job(job: EndedNotice) -> list[Notification]:
    if job.status == "completed":
        return [Notification(occasion=NotificationEvent.COMPLETED, title=f"{job.name} is done", body="Its output is ready.")]
    if job.status == "failed":
        return [
            Notification(occasion=NotificationEvent.FAILED, title=f"{job.name} failed", body=job.error or "No reason was given.")
        ]
    return []


def _of_hold(batch: BatchNow, why: str) -> Notification:
    return Notification(occasion=NotificationEvent.FAILED, title=f"{batch.name} is held", body=why, batch_id=batch.id)


def _of_batch(batch: BatchNow) -> list[Notification]:
    completed, failed = batch.counts.get("completed", 0), batch.counts.get("failed", 0)
    if not completed and not failed:
        return []
    summary = ", ".join(f"{count} {status}" for status, count in batch.counts.items() if count)
    return [
        Notification(
            occasion=NotificationEvent.FAILED if failed else NotificationEvent.COMPLETED,
            title=f"{batch.name} is done{f', but {failed} failed' if failed else ''}",
            body=f"{summary[0].upper()}{summary[1:]}.",
            batch_id=batch.id,
        )
    ]


class Notifier:
    """`urls` are always notified of the occasions in `events`."""

    def __init__(self, urls: Sequence[str] = (), events: Collection[NotificationEvent] = tuple(NotificationEvent)) -> None:
        self._urls = tuple(urls)
        self._events = frozenset(events)

    async def notify(self, notification: Notification, urls_of_batch: Sequence[str] = ()) -> list[SendingFailure]:
        """Notify the permanent URLs, and the subscribers of this batch for any outcome."""
        always = self._urls if notification.occasion in self._events else ()
        return await self.send(
            notification.title, notification.body, (*always, *(urls_of_batch if notification.batch_id else ()))
        )

    async def send(self, title: str, body: str, urls: Sequence[str]) -> list[SendingFailure]:
        """Send to each URL once. Returns the failures. Takes seconds if a service does not answer."""
        wanted = list(dict.fromkeys(urls))
        loop = asyncio.get_running_loop()
        found = await asyncio.gather(*(loop.run_in_executor(_THREADS, _send, each, title, body) for each in wanted))
        return [
            SendingFailure(url=without_secrets(url), why=why, url_given=url)
            for url, why in zip(wanted, found, strict=True)
            if why is not None
        ]


def without_secrets(url: str) -> str:
    """A URL for messages: `tgram://…`, `jsons://example.com/…`."""
    scheme, separator, _ = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9.+-]{0,30}", scheme):
        return "(not a URL)"
    if url == DESKTOP:
        return url
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if scheme.lower() not in _WEBHOOKS or not host:
        return f"{scheme}://…"
    return f"{scheme}://{host}{f':{port}' if port else ''}/…"


def why_unusable(url: str) -> str | None:
    """Return what is wrong with a URL, without sending anything."""
    import apprise

    real = _real(url)
    with _captured_warnings() as warnings:
        return _not_understood(real, _reason(real, warnings)) if apprise.Apprise.instantiate(real) is None else None


def _real(url: str) -> str:
    return _THIS_DESKTOP if url.strip() == DESKTOP else url


def _send(url: str, title: str, body: str) -> str | None:
    """Return why it could not be sent, if so. Apprise blocks, so this runs in a thread."""
    # apprise is slow to import, and most desks do not need it
    import apprise

    real = _real(url)
    with _captured_warnings() as warnings:
        try:
            service = apprise.Apprise.instantiate(real)
            if service is None:
                return _not_understood(real, _reason(real, warnings))
            if service.notify(title=title, body=body):
                return None
        except (
            Exception
        ) as error:  # a plugin of a hundred may raise anything, and the others must be notified all the same
            warnings.append(type(error).__name__)
        return _reason(real, warnings) or "The service did not say why."


def _not_understood(url: str, reason: str) -> str:
    import apprise

    scheme = url.partition("://")[0].strip().lower()
    for service in apprise.Apprise().details(show_requirements=True, show_disabled=True)["schemas"]:
        if scheme not in {*(service["protocols"] or ()), *(service["secure_protocols"] or ())}:
            continue
        if not service["enabled"]:
            needs = service["requirements"]
            wanted = ", ".join([str(needs["details"]), *map(str, needs["packages_required"])]).strip(", ")
            return f"{service['service_name']} cannot be used on this machine. {wanted}".strip()
        forms = ", ".join(str(form).replace("{schema}", scheme) for form in service["details"]["templates"][:3])
        return f"This is not a complete URL of {service['service_name']}. {reason} It is written like {forms}".replace(
            "  ", " "
        )
    return "No service has this kind of URL. They are listed at https://github.com/caronc/apprise/wiki"


def _reason(url: str, warnings: Sequence[str]) -> str:
    return " ".join(dict.fromkeys(_scrubbed(warning, url) for warning in warnings)).strip()


def _scrubbed(text: str, url: str) -> str:
    """Remove URL parts that may be secrets, longest first."""
    shown = without_secrets(url)
    for secret in sorted(_parts(url), key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET and secret not in shown:
            text = text.replace(secret, "…")
    return text


def _parts(url: str) -> set[str]:
    rest = url.partition("://")[2]
    place, _, query = rest.partition("?")
    found = {url, rest, *re.split(r"[:/@#]+", place), *(value for _, value in parse_qsl(query))}
    return {form for secret in found for form in (secret, unquote(secret), quote(secret, safe=""))} - {""}


class _LogCapture(logging.Filter):
    """Captures apprise's log lines in this thread and hides them, because they contain parts of URLs."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True
        # its errors are about URLs it does not understand; our messages are clearer
        if record.name == "apprise" and record.levelno == logging.WARNING:
            self.warnings.append(record.getMessage())
        return False


@contextmanager
def _captured_warnings() -> Iterator[list[str]]:
    """Capture apprise's log lines of this thread."""
    capture = _LogCapture()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(capture)
    try:
        yield capture.warnings
    finally:
        for logger in loggers:
            logger.removeFilter(capture)
