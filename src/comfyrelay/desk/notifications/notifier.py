"""Send the notifications of a desk."""

import asyncio
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from comfyrelay.apprise_urls import send_message as _send
from comfyrelay.apprise_urls import why_unusable, without_secrets
from comfyrelay.desk.notifications.rules import Notification
from comfyrelay.protocol.desk import NotificationEvent

__all__ = ["Notifier", "SendingFailure", "why_unusable", "without_secrets"]

# Separate threads, so that slow services block nothing else.
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="notify")


@dataclass(frozen=True, kw_only=True, slots=True)
class SendingFailure:
    """A URL that could not be notified. `url` is safe to show, but `url_given` is not."""

    url: str
    why: str
    url_given: str = field(repr=False)


class Notifier:
    """Notifies `urls` about the given events."""

    def __init__(
        self, urls: Sequence[str] = (), events: Collection[NotificationEvent] = tuple(NotificationEvent)
    ) -> None:
        self._urls = tuple(urls)
        self._events = frozenset(events)

    async def notify(self, notification: Notification, batch_urls: Sequence[str] = ()) -> list[SendingFailure]:
        """Notify the configured URLs about their events, and the subscribers of a batch about every outcome."""
        urls = self._urls if notification.event in self._events else ()
        subscribers = batch_urls if notification.batch_id else ()
        return await self.send(notification.title, notification.body, (*urls, *subscribers))

    async def send(self, title: str, body: str, urls: Sequence[str]) -> list[SendingFailure]:
        """Send to each URL once. Returns the failures. This takes seconds if a service does not answer."""
        wanted = list(dict.fromkeys(urls))
        loop = asyncio.get_running_loop()
        reasons = await asyncio.gather(*(loop.run_in_executor(_THREADS, _send, url, title, body) for url in wanted))
        return [
            SendingFailure(url=without_secrets(url), why=why, url_given=url)
            for url, why in zip(wanted, reasons, strict=True)
            if why is not None
        ]
