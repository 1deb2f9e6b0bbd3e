"""Notify operators of problems by mail, Slack, ntfy and other services, without repeating each message.

In the central database, servers share the problems that each of them sees, and one of them sends the alert. Rules are
settings, and each server remembers sent alerts, so that alerts also work while the database is unreachable: then each
server sends the problems that it sees itself.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import structlog

from comfyrelay.apprise_urls import send_message, why_unusable, without_secrets
from comfyrelay.clock import utc_now
from comfyrelay.errors import ConfigurationError, DatabaseUnavailable, NotFound
from comfyrelay.services.accounts.mail_texts import Mail
from comfyrelay.services.accounts.mailer import Mailer
from comfyrelay.services.databases import Databases
from comfyrelay.services.operations.outages import Outage, OutageKind
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.settings import AlertRule
from comfyrelay.store.central import alerts
from comfyrelay.store.database import Tx
from comfyrelay.text import counted

log = structlog.get_logger(__name__)

ALL = "*"
MAILTO = "mailto:"
# Separate threads, so that slow services do not block anything else.
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="alerts")
OutageName = tuple[str, str]
Problems = dict[OutageName, Outage]
# Problems that a server saw count for this long.
SEEN_FOR = timedelta(minutes=2)
TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class Told:
    """A problem in a sent alert. `at` is when the receivers last read that it exists, `is_over` whether they have read
    since that it is over."""

    outage: Outage
    at: datetime
    is_over: bool = False


ToldProblems = Mapping[OutageName, Told]


@dataclass
class RuleState:
    """The state of a rule, as far as this server knows."""

    last_sent_at: datetime | None = None
    failures: Mapping[str, str] = field(default_factory=dict)
    told: ToldProblems = field(default_factory=dict)
    # The problems in the last check of this server.
    own: Problems = field(default_factory=dict)
    # Whether this server has sent alerts that are not recorded in the database.
    is_alone: bool = False


class Message(NamedTuple):
    """The message to send, what its receivers then know, and the previous state of the rule."""

    title: str
    body: str
    told: ToldProblems
    told_before: ToldProblems
    sent_before: datetime | None


class Alerts:
    def __init__(
        self,
        databases: Databases,
        rules: Mapping[str, AlertRule],
        mailer: Mailer,
        *,
        host: str,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.rules = rules
        self.states = {name: RuleState() for name in rules}
        self._databases = databases
        self._mailer = mailer
        self._host = host
        self._clock = clock
        # Identifies this process among the servers.
        self._holder = secrets.token_hex(8)

    def check(self) -> None:
        """Raise `ConfigurationError` for a rule that can never send an alert. Called at startup."""
        known = {ALL, *OutageKind}
        for name, rule in self.rules.items():
            if name not in known:
                raise ConfigurationError(
                    f"COMFYRELAY_ALERTS has a rule for {name!r}. Kinds are {', '.join(sorted(known))}."
                )
            for url in rule.urls:
                if (problem := self._problem(url)) is not None:
                    raise ConfigurationError(f"COMFYRELAY_ALERTS: {shown(url)} cannot be used. {problem}")

    async def notify(self, current: Sequence[Outage]) -> None:
        """Send new, resolved and persisting problems by each rule. Each problem has its own quiet time."""
        for name, rule in self.rules.items():
            await self._notify(name, rule, {(outage.kind, outage.name): outage for outage in self._of(name, current)})

    async def send_test(self, name: str) -> Mapping[str, str]:
        """Send a test message by a rule, and return the errors by URL, without secrets."""
        if name not in self.rules:
            raise NotFound(f"There is no alert rule {name!r}.")
        text = f"This is a test of the alerts of {self._host}. The rule {name!r} works."
        return await self._send(self.rules[name].urls, f"Test alert from {self._host}", text)

    async def _notify(self, name: str, rule: AlertRule, found: Problems) -> None:
        state = self.states[name]
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                message = await self._databases.central.run(
                    TransactionStep.ALERT, partial(self._decide_together, name=name, rule=rule, found=found)
                )
            state.is_alone = False
        except (DatabaseUnavailable, TimeoutError):
            message = self._decide_alone(state, rule, found)
            state.is_alone = state.is_alone or message is not None
        state.own = found
        if message is None:
            return
        state.failures = await self._send(rule.urls, message.title, message.body)
        if len(state.failures) == len(set(rule.urls)):
            # Nobody received the message, so the next check tries again.
            await self._take_back(name, message)

    async def _decide_together(self, tx: Tx, *, name: str, rule: AlertRule, found: Problems) -> Message | None:
        """Add the problems that this server sees to the shared state, and return the message to send, if any. The
        message is recorded as sent, so that no other server sends it."""
        state, stored, now = self.states[name], await alerts.lock(tx, name), await tx.now()
        seen = {
            holder: view
            for holder, view in stored.seen.items()
            if holder != self._holder and now - datetime.fromisoformat(view["at"]) < SEEN_FOR
        }
        everything = {key: each for view in seen.values() for key, each in _problems(view["problems"]).items()} | found
        told: ToldProblems = {**_told(stored.told), **(state.told if state.is_alone else {})}
        sent_at = max((at for at in (stored.last_sent_at, state.last_sent_at) if at is not None), default=None)
        message = self._message(rule, everything, told, sent_at, now)
        if message is not None:
            told, sent_at = message.told, now
        seen[self._holder] = {"at": now.isoformat(), "problems": _json(found)}
        await alerts.write(tx, name, last_sent_at=sent_at, told=_told_json(told), seen=seen)
        state.told, state.last_sent_at = told, sent_at
        return message

    def _decide_alone(self, state: RuleState, rule: AlertRule, found: Problems) -> Message | None:
        """Decide without the database. Problems that only other servers have seen are assumed to continue."""
        now = self._clock()
        others = {key: each.outage for key, each in state.told.items() if key not in state.own and not each.is_over}
        message = self._message(rule, others | found, state.told, state.last_sent_at, now)
        if message is not None:
            state.told, state.last_sent_at = message.told, now
        return message

    def _message(
        self, rule: AlertRule, found: Problems, told: ToldProblems, sent_at: datetime | None, now: datetime
    ) -> Message | None:
        quiet_time = timedelta(minutes=rule.quiet_minutes)
        over = [each.outage for key, each in told.items() if key not in found and not each.is_over]
        if not over and not any(_is_due(told.get(key), quiet_time, now) for key in found):
            return None
        after = {key: Told(outage, now) for key, outage in found.items()}
        # If they return within their quiet time, they are not reported again.
        after |= {
            key: replace(each, is_over=True)
            for key, each in told.items()
            if key not in found and now < each.at + quiet_time
        }
        return Message(*_message(self._host, list(found.values()), over), after, told, sent_at)

    async def _take_back(self, name: str, message: Message) -> None:
        """Undo the record of a message that nobody received."""
        state = self.states[name]
        state.told, state.last_sent_at = message.told_before, message.sent_before

        async def work(tx: Tx) -> None:
            await alerts.lock(tx, name)
            await alerts.write(tx, name, last_sent_at=message.sent_before, told=_told_json(message.told_before))

        with suppress(DatabaseUnavailable, TimeoutError):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._databases.central.run(TransactionStep.ALERT, work)

    def _of(self, name: str, current: Sequence[Outage]) -> Sequence[Outage]:
        """Return the problems that a rule is for. `*` is for kinds without a rule of their own."""
        others: Collection[str] = self.rules.keys() - {ALL}
        return [outage for outage in current if (outage.kind not in others if name == ALL else outage.kind == name)]

    async def _send(self, urls: Sequence[str], title: str, body: str) -> dict[str, str]:
        wanted = list(dict.fromkeys(urls))
        problems = await asyncio.gather(*(self._send_one(url, title, body) for url in wanted))
        failures = {shown(url): why for url, why in zip(wanted, problems, strict=True) if why is not None}
        for url, why in failures.items():
            log.warning("alert.not_sent", url=url, why=why, about=title)
        return failures

    async def _send_one(self, url: str, title: str, body: str) -> str | None:
        if url.startswith(MAILTO):
            return await self._mailer.send_now(url.removeprefix(MAILTO), Mail(subject=title, body=f"{body}\n"))
        return await asyncio.get_running_loop().run_in_executor(_THREADS, send_message, url, title, body)

    def _problem(self, url: str) -> str | None:
        if not url.startswith(MAILTO):
            return why_unusable(url)
        return None if self._mailer.is_enabled else "Set COMFYRELAY_SMTP_URL and COMFYRELAY_MAIL_FROM for mails."


def _is_due(known: Told | None, quiet_time: timedelta, now: datetime) -> bool:
    """Return whether a current problem is to be reported."""
    if known is None:
        return True
    # Without a quiet time, persisting problems are not repeated.
    return now >= known.at + quiet_time and (known.is_over or bool(quiet_time))


def _told_json(told: ToldProblems) -> list[dict[str, Any]]:
    return [
        {"outage": _outage_json(each.outage), "at": each.at.isoformat(), "is_over": each.is_over}
        for each in told.values()
    ]


def _told(stored: Sequence[Mapping[str, Any]]) -> ToldProblems:
    return {
        key: Told(outage, datetime.fromisoformat(each["at"]), each["is_over"])
        for each in stored
        for key, outage in _problems([each["outage"]]).items()
    }


def _json(problems: Problems) -> list[dict[str, Any]]:
    return [_outage_json(outage) for outage in problems.values()]


def _outage_json(outage: Outage) -> dict[str, Any]:
    return {**asdict(outage), "since": outage.since.isoformat()}


def _problems(stored: Sequence[Mapping[str, Any]]) -> Problems:
    found = [Outage(**{**each, "since": datetime.fromisoformat(each["since"])}) for each in stored]
    return {(outage.kind, outage.name): outage for outage in found}


def shown(url: str) -> str:
    """Return a URL that is safe to show. An address contains no secret."""
    return url if url.startswith(MAILTO) else without_secrets(url)


def _message(host: str, current: Sequence[Outage], over: Sequence[Outage]) -> tuple[str, str]:
    problems = counted(len(current), "problem")
    title = f"{host}: {problems}" if current else f"{host}: all problems are over"
    texts = [f"{outage.name}: {outage.detail}\n{outage.means}\n{outage.advice}" for outage in current]
    texts += [f"{outage.name}: this problem is over." for outage in over]
    return title, "\n\n".join(texts)
