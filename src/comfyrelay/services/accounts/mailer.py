"""Mails to users, through a queue in the central database.

The transaction that creates a link also adds its mail. A loop sends mails, and retries for a day. If a process dies
while sending, a mail may be sent twice, but is never lost.
"""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import structlog

from comfyrelay.domain.ids import new_id
from comfyrelay.services.accounts.mail_texts import Mail
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.settings import Settings
from comfyrelay.store.central import mails
from comfyrelay.store.central.mails import ClaimedMail
from comfyrelay.store.database import Tx
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

CLAIM_SIZE = 20
# Longer than it can take to send all mails of a claim, one after the other.
LEASE_SECONDS = 2 * CLAIM_SIZE * 20.0
# A day in total, because links in mails are valid for a day.
RETRY_DELAYS_SECONDS = (10, 60, 300, 900, 3600, 3600, 7200, 14_400, 28_800, 28_800)
KEPT_SECONDS = 7 * 86_400.0


class Mailer:
    def __init__(self, databases: Databases, settings: Settings) -> None:
        self._databases = databases
        self._url = settings.smtp_url
        self._sender = settings.mail_from or ""
        self.host = urlsplit(settings.base_url).netloc
        self.studio = settings.studio_name or self.host
        # Notified when a mail may be due.
        self.wakeup = Wakeup()
        # Counts of outcomes in this process, for metrics.
        self.outcomes: Counter[str] = Counter()
        # A separate thread, because a slow mail server must not block the threads for files and passwords.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mail")

    @property
    def is_enabled(self) -> bool:
        return self._url is not None

    async def add(self, tx: Tx, recipient: str, mail: Mail) -> None:
        """Add a mail in a transaction. Has no effect without a mail server. Call `wakeup.notify` after the commit."""
        if self.is_enabled:
            await mails.add(tx, id_=new_id(), recipient=recipient, subject=mail.subject, body=mail.body)

    async def run_once(self) -> int:
        """Send all mails that are due, and return how many were sent."""
        if not self.is_enabled:
            return 0
        sent = 0
        while claimed := await self._claim():
            for mail in claimed:
                sent += await self._send(mail)
        return sent

    async def send_now(self, recipient: str, mail: Mail) -> str | None:
        """Send a mail once, without the queue. Return the problem, if any."""
        if self._url is None:
            return "This server sends no mail. Set COMFYRELAY_SMTP_URL and COMFYRELAY_MAIL_FROM."
        problem = await self._try(new_id(), recipient, mail)
        return None if problem is None else problem[0]

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _claim(self) -> list[ClaimedMail]:
        async def work(tx: Tx) -> list[ClaimedMail]:
            await mails.remove_old(tx, older_than_seconds=KEPT_SECONDS)
            return await mails.claim(tx, limit=CLAIM_SIZE, lease_seconds=LEASE_SECONDS)

        return await self._databases.central.run(TransactionStep.MAIL_CLAIM, work)

    async def _send(self, mail: ClaimedMail) -> bool:
        problem = await self._try(mail.id, mail.recipient, Mail(subject=mail.subject, body=mail.body))
        if problem is None:
            await self._databases.central.run(TransactionStep.MAIL_NOTE, lambda tx: mails.remove(tx, mail.id))
            self.outcomes["sent"] += 1
            return True
        error, is_permanent = problem
        wait = None if is_permanent else retry_delay(mail.attempts)
        await self._databases.central.run(
            TransactionStep.MAIL_NOTE,
            lambda tx: mails.record_failure(tx, mail.id, error=error, wait_seconds=wait),
        )
        self.outcomes["given_up" if wait is None else "postponed"] += 1
        log.warning("mail.not_sent", mail_id=mail.id, attempt=mail.attempts, error=error, is_given_up=wait is None)
        return False

    async def _try(self, id_: str, recipient: str, mail: Mail) -> tuple[str, bool] | None:
        """Send a mail once. Return the problem, and whether it is permanent."""
        # Desks and servers without mail never need these modules.
        from comfyrelay.services.accounts import smtp

        letter = smtp.Letter(id=id_, sender=self._sender, recipient=recipient, host=self.host, mail=mail)
        url = urlsplit(self._url or "")
        return await asyncio.get_running_loop().run_in_executor(self._thread, smtp.send, url, letter)


def retry_delay(attempts: int) -> float | None:
    """Return the delay after this many attempts; `None` means no further attempt."""
    return RETRY_DELAYS_SECONDS[attempts - 1] if attempts <= len(RETRY_DELAYS_SECONDS) else None
