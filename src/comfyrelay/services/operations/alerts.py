"""Tell operators of problems by mail, Slack, ntfy and other services, without repeating each message.

Rules are settings and the state is in memory, so that alerts also work while the databases are away. Each server sends
alerts about what it sees.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from comfyrelay.apprise_urls import send_message, why_unusable, without_secrets
from comfyrelay.clock import utc_now
from comfyrelay.errors import ConfigurationError, NotFound
from comfyrelay.services.accounts.mail_texts import Mail
from comfyrelay.services.accounts.mailer import Mailer
from comfyrelay.services.operations.outages import Outage, OutageKind
from comfyrelay.settings import AlertRule

log = structlog.get_logger(__name__)

ALL = "*"
MAILTO = "mailto:"
# Separate threads, so that slow services block nothing else.
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="alerts")
OutageName = tuple[str, str]


@dataclass
class RuleState:
    """What a rule has sent. `told` are the problems that its receivers know of."""

    last_sent_at: datetime | None = None
    failures: Mapping[str, str] = field(default_factory=dict)
    told: dict[OutageName, Outage] = field(default_factory=dict)


class Alerts:
    def __init__(
        self, rules: Mapping[str, AlertRule], mailer: Mailer, *, host: str, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self.rules = rules
        self.states = {name: RuleState() for name in rules}
        self._mailer = mailer
        self._host = host
        self._clock = clock

    def check(self) -> None:
        """Raise `ConfigurationError` for a rule that can never send an alert. Call it at the start."""
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
        """Send what is new, and what is over, by each rule that is not quiet."""
        for name, rule in self.rules.items():
            await self._notify(name, rule, {(outage.kind, outage.name): outage for outage in self._of(name, current)})

    async def send_test(self, name: str) -> Mapping[str, str]:
        """Send a test by a rule, and return the problems by URL, without secrets."""
        if name not in self.rules:
            raise NotFound(f"There is no alert rule {name!r}.")
        text = f"This is a test of the alerts of {self._host}. The rule {name!r} works."
        return await self._send(self.rules[name].urls, f"Test alert from {self._host}", text)

    async def _notify(self, name: str, rule: AlertRule, found: Mapping[OutageName, Outage]) -> None:
        state, now = self.states[name], self._clock()
        over = [outage for key, outage in state.told.items() if key not in found]
        is_quiet = state.last_sent_at is not None and now < state.last_sent_at + timedelta(minutes=rule.quiet_minutes)
        is_news = found.keys() != state.told.keys()
        # Without a quiet time, a problem that lasts is not repeated.
        if is_quiet or not (found or over) or not (is_news or rule.quiet_minutes):
            return
        title, body = _message(self._host, list(found.values()), over)
        state.failures = await self._send(rule.urls, title, body)
        if len(state.failures) < len(set(rule.urls)):
            # If all failed, the next check tries again.
            state.last_sent_at, state.told = now, dict(found)

    def _of(self, name: str, current: Sequence[Outage]) -> Sequence[Outage]:
        """Return the problems of a rule. `*` is for kinds without their own rule."""
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


def shown(url: str) -> str:
    """Return a URL that is safe to show. An address contains no secret."""
    return url if url.startswith(MAILTO) else without_secrets(url)


def _message(host: str, current: Sequence[Outage], over: Sequence[Outage]) -> tuple[str, str]:
    problems = f"{len(current)} problem{'' if len(current) == 1 else 's'}"
    title = f"{host}: {problems}" if current else f"{host}: all is well again"
    texts = [f"{outage.name}: {outage.detail}\n{outage.means}\n{outage.advice}" for outage in current]
    texts += [f"{outage.name}: this problem is over." for outage in over]
    return title, "\n\n".join(texts)
