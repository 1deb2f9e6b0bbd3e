"""Notifications when jobs end, through whatever apprise speaks: desktop, webhook, Telegram, mail and a hundred more.

The URLs hold passwords and tokens, and are never shown or logged: messages name the service, and of a webhook the host.
"""

import asyncio
import logging
import re
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from urllib.parse import parse_qsl, quote, unquote, urlsplit

__all__ = ["BatchNow", "Ended", "Failure", "News", "Notifier", "Occasion", "Watch", "why_unusable", "without_secrets"]

DESKTOP = "desktop://"
_DESKTOPS = {"darwin": "macosx://", "win32": "windows://"}
# Of other services, what stands for the host may be a token.
_WEBHOOKS = frozenset({"form", "forms", "json", "jsons", "xml", "xmls"})
_SHORTEST_SECRET = 3
_LOGGERS = ("apprise", "urllib3.connectionpool")
# Its own, so that services that do not answer leave the threads of others alone.
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="notify")


class Occasion(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    QUEUE_EMPTY = "empty"


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """`batch_id` is set when it is about a batch, so that those who asked for this batch are told too."""

    occasion: Occasion
    title: str
    body: str
    batch_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """`url` may be shown to anybody; `url_given` may not."""

    url: str
    why: str
    url_given: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A job that has ended: `name` is what a person calls it."""

    name: str
    status: str
    completed_at: datetime
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchNow:
    """A batch as it is: its items by status, a retried one as its newest try."""

    id: str
    name: str
    counts: Mapping[str, int]

    @property
    def is_over(self) -> bool:
        return not any(self.counts.get(each, 0) for each in ("queued", "processing", "paused"))


class Watch:
    """Which ends are news. A job by itself is; of a batch, only the end of its last item, or everybody would be told
    of every item; and so is an empty queue. What the user canceled is no news to them."""

    def __init__(self) -> None:
        # when something was last told, by batch, and for the whole queue under None
        self._told_at: dict[str | None, datetime] = {}

    def ended(self, job: Ended, batch: BatchNow | None, *, active: int, seen_at: datetime) -> list[News]:
        """`batch` and `active` (jobs that are queued or run) as they were at `seen_at`, by the clock of the jobs."""
        news = []
        if batch is None:
            news += _of_job(job)
        elif batch.is_over and self._is_new(batch.id, job, seen_at):
            news += _of_batch(batch)
        if not active and self._is_new(None, job, seen_at):
            news.append(
                News(occasion=Occasion.QUEUE_EMPTY, title="The queue is empty", body=f"The last was {job.name}.")
            )
        return news

    def _is_new(self, about: str | None, job: Ended, seen_at: datetime) -> bool:
        """Several may end before the first of them is looked at: what was told then holds for all of these."""
        told_at = self._told_at.get(about)
        if told_at is not None and job.completed_at <= told_at:
            return False
        self._told_at[about] = seen_at
        return True


def _of_job(job: Ended) -> list[News]:
    if job.status == "completed":
        return [News(occasion=Occasion.COMPLETED, title=f"{job.name} is done", body="Its output is there.")]
    if job.status == "failed":
        return [News(occasion=Occasion.FAILED, title=f"{job.name} failed", body=job.error or "No reason was given.")]
    return []


def _of_batch(batch: BatchNow) -> list[News]:
    completed, failed = batch.counts.get("completed", 0), batch.counts.get("failed", 0)
    if not completed and not failed:
        return []
    told = ", ".join(f"{count} {status}" for status, count in batch.counts.items() if count)
    return [
        News(
            occasion=Occasion.FAILED if failed else Occasion.COMPLETED,
            title=f"{batch.name} is done{f', but {failed} failed' if failed else ''}",
            body=f"{told[0].upper()}{told[1:]}.",
            batch_id=batch.id,
        )
    ]


class Notifier:
    """`urls` are always told, of the occasions in `events`."""

    def __init__(self, urls: Sequence[str] = (), events: Collection[Occasion] = tuple(Occasion)) -> None:
        self._urls = tuple(urls)
        self._events = frozenset(events)

    async def tell(self, news: News, urls_of_batch: Sequence[str] = ()) -> list[Failure]:
        """Those who always want to know, and those who asked for this batch, whatever became of it."""
        always = self._urls if news.occasion in self._events else ()
        return await self.send(news.title, news.body, (*always, *(urls_of_batch if news.batch_id else ())))

    async def send(self, title: str, body: str, urls: Sequence[str]) -> list[Failure]:
        """Send to each URL, once; what could not be sent, and why. Takes seconds where nobody answers."""
        wanted = list(dict.fromkeys(urls))
        loop = asyncio.get_running_loop()
        found = await asyncio.gather(*(loop.run_in_executor(_THREADS, _send, each, title, body) for each in wanted))
        return [
            Failure(url=without_secrets(url), why=why, url_given=url)
            for url, why in zip(wanted, found, strict=True)
            if why is not None
        ]


def without_secrets(url: str) -> str:
    """What a URL is about, for messages: `tgram://…`, `jsons://example.com/…`."""
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
    """What is wrong with a URL, as far as that is seen without sending anything."""
    import apprise

    real = _real(url)
    with _heard() as said:
        return _not_understood(real, _reason(real, said)) if apprise.Apprise.instantiate(real) is None else None


def _real(url: str) -> str:
    return _DESKTOPS.get(sys.platform, "dbus://") if url.strip() == DESKTOP else url


def _send(url: str, title: str, body: str) -> str | None:
    """Why it could not be sent, or nothing. Apprise waits on sockets, so this runs in a thread of its own."""
    # a hundred services take a while to import, and most desks need none
    import apprise

    real = _real(url)
    with _heard() as said:
        try:
            service = apprise.Apprise.instantiate(real)
            if service is None:
                return _not_understood(real, _reason(real, said))
            if service.notify(title=title, body=body):
                return None
        except (
            Exception
        ) as error:  # a plugin of a hundred may raise anything, and nobody must wait for its news in vain
            said.append(type(error).__name__)
        return _reason(real, said) or "The service did not say why."


def _not_understood(url: str, reason: str) -> str:
    import apprise

    scheme = url.partition("://")[0].strip().lower()
    for each in apprise.Apprise().details(show_requirements=True, show_disabled=True)["schemas"]:
        if scheme not in {*(each["protocols"] or ()), *(each["secure_protocols"] or ())}:
            continue
        if not each["enabled"]:
            needs = each["requirements"]
            wanted = ", ".join([str(needs["details"]), *map(str, needs["packages_required"])]).strip(", ")
            return f"{each['service_name']} cannot be used on this machine. {wanted}".strip()
        forms = ", ".join(str(form).replace("{schema}", scheme) for form in each["details"]["templates"][:3])
        return f"This is not a complete URL of {each['service_name']}. {reason} It is written like {forms}".replace(
            "  ", " "
        )
    return "No service has this kind of URL. They are listed at https://github.com/caronc/apprise/wiki"


def _reason(url: str, said: Sequence[str]) -> str:
    return " ".join(dict.fromkeys(_scrubbed(each, url) for each in said)).strip()


def _scrubbed(text: str, url: str) -> str:
    """Without any part of the URL that could be a secret; longest first, for one may hold another."""
    shown = without_secrets(url)
    for secret in sorted(_parts(url), key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET and secret not in shown:
            text = text.replace(secret, "…")
    return text


def _parts(url: str) -> set[str]:
    rest = url.partition("://")[2]
    place, _, query = rest.partition("?")
    found = {url, rest, *re.split(r"[:/@#]+", place), *(value for _, value in parse_qsl(query))}
    return {form for each in found for form in (each, unquote(each), quote(each, safe=""))} - {""}


class _Ear(logging.Filter):
    """Keeps what is logged in this thread from every log, because it repeats parts of URLs, and remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True
        # its errors are about URLs that it does not understand; ours say that better
        if record.name == "apprise" and record.levelno == logging.WARNING:
            self.said.append(record.getMessage())
        return False


@contextmanager
def _heard() -> Iterator[list[str]]:
    """What apprise says in this thread, and nowhere else."""
    ear = _Ear()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for each in loggers:
        each.addFilter(ear)
    try:
        yield ear.said
    finally:
        for each in loggers:
            each.removeFilter(ear)
