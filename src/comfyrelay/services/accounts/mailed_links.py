"""Links that visitors can request by mail: to create an account or to set a new password.

For every address, the answer is the same and needs the same transaction, so that it does not reveal who has an account.
"""

import secrets
from collections.abc import Awaitable, Callable

import structlog

from comfyrelay.domain.credentials import email_problem, normalize_email
from comfyrelay.domain.queue.states import LinkKind
from comfyrelay.errors import Conflict, InvalidInput
from comfyrelay.services.accounts.links import RESET_SECONDS, AccountLinks, query_to
from comfyrelay.services.accounts.mail_texts import Mail, already_registered_mail, reset_mail, sign_up_mail
from comfyrelay.services.accounts.mailer import Mailer
from comfyrelay.services.accounts.sign_in import hash_secret
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import account_links, tenants
from comfyrelay.store.database import Tx

log = structlog.get_logger(__name__)

# Maximum number of mails to one address that visitors can request, so that they cannot flood it.
MAX_MAILS = 5
PER_SECONDS = 3600.0
# Creates a link with this address and secret, and returns the mail to send, if any.
Work = Callable[[Tx, str, str], Awaitable[Mail | None]]
NO_MAIL = "This server sends no mail. Ask your administrator for a link."


class MailedLinks:
    def __init__(self, databases: Databases, links: AccountLinks, mailer: Mailer, *, base_url: str) -> None:
        self._databases = databases
        self._links = links
        self._mailer = mailer
        self._base_url = base_url

    async def request_password(self, email: str) -> None:
        """Mail a link for a new password, if an enabled user has this address."""

        async def work(tx: Tx, address: str, secret: str) -> Mail | None:
            user = await tenants.by_email(tx, address)
            is_known = user is not None and not await tenants.is_disabled(tx, user.id)
            await account_links.create(
                tx,
                token_hash=hash_secret(secret),
                kind=LinkKind.RESET,
                lifetime_seconds=RESET_SECONDS,
                # A link without a user is useless. It is created to count the request, and to take the same time.
                user_id=user.id if user is not None and is_known else None,
                email=address,
            )
            return reset_mail(self._links.password_url(secret), studio=self._mailer.studio) if is_known else None

        await self._request(email, work)

    async def request_account(self, email: str, *, name: str | None = None, to: str | None = None) -> None:
        """Mail a link that creates an account, or a hint if the account exists. `to` is the page to open afterwards."""

        async def work(tx: Tx, address: str, secret: str) -> Mail | None:
            is_known = await tenants.by_email(tx, address) is not None
            await account_links.create(
                tx,
                token_hash=hash_secret(secret),
                kind=LinkKind.SIGN_UP,
                lifetime_seconds=RESET_SECONDS,
                email=address,
                name=name,
            )
            if is_known:
                return already_registered_mail(f"{self._base_url}/sign-in{query_to(to)}", studio=self._mailer.studio)
            return sign_up_mail(self._links.password_url(secret, to=to), studio=self._mailer.studio)

        await self._request(email, work)

    async def _request(self, email: str, work: Work) -> None:
        if not self._mailer.is_enabled:
            raise Conflict(NO_MAIL)
        if (problem := email_problem(email)) is not None:
            raise InvalidInput(errors={"email": problem})
        address, secret = normalize_email(email), secrets.token_urlsafe(32)

        async def add_mail(tx: Tx) -> None:
            if await account_links.count_mailed(tx, address, seconds=PER_SECONDS) >= MAX_MAILS:
                log.info("mail.too_many")
                return
            if (mail := await work(tx, address, secret)) is not None:
                await self._mailer.add(tx, address, mail)

        await self._databases.central.run(TransactionStep.TENANT, add_mail)
        self._mailer.wakeup.notify()
