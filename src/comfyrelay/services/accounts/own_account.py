"""Changes that users make to their own accounts: password, email address and deletion."""

import secrets
from dataclasses import replace

import structlog

from comfyrelay.domain.credentials import email_problem, normalize_email
from comfyrelay.domain.queue.states import LinkKind
from comfyrelay.domain.records.accounts import SESSION, LinkRecord, User
from comfyrelay.errors import Conflict, InvalidInput, NotFound, Unauthorized
from comfyrelay.services.accounts import mail_texts
from comfyrelay.services.accounts.links import RESET_SECONDS
from comfyrelay.services.accounts.mailed_links import MAX_MAILS, PER_SECONDS
from comfyrelay.services.accounts.mailer import Mailer
from comfyrelay.services.accounts.sign_in import SignIn, hash_secret
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import account_links, api_tokens, mails, tenants
from comfyrelay.store.database import Tx

log = structlog.get_logger(__name__)

WRONG_PASSWORD = "This is not your current password."
EXPIRED_EMAIL = (
    "This link was already used, has expired, or ended when the password was changed. Change the address again in your "
    "account."
)
TAKEN = "This address cannot be used. Choose another one."
ONLY_ADMIN = "This is the only administrator. Make another user administrator first."


class OwnAccount:
    def __init__(self, databases: Databases, sign_in: SignIn, mailer: Mailer, *, base_url: str) -> None:
        self._databases = databases
        self._sign_in = sign_in
        self._mailer = mailer
        self._base_url = base_url

    async def is_verified(self, user: User) -> bool:
        async with self._databases.central.read() as tx:
            return await tenants.email_verified_at(tx, user.id) is not None

    async def change_password(self, user: User, *, current: str, new: str, kept_session: str) -> None:
        """Set a new password, and end all sessions except `kept_session`. API tokens remain valid."""
        before = await self._require_password(user, current, field="current_password")
        hashed = await self._sign_in.hash_password(new, email=user.email, field="new_password")

        async def work(tx: Tx) -> None:
            if not await tenants.lock_password(tx, user.id, before):
                raise InvalidInput(WRONG_PASSWORD, errors={"current_password": WRONG_PASSWORD})
            await tenants.set_password(tx, user.id, hashed)
            await api_tokens.revoke_all(tx, user.id, name=SESSION, except_hash=hash_secret(kept_session))
            await account_links.invalidate_links(tx, user.id)
            mail = mail_texts.changed_password_mail(f"{self._base_url}/forgot", studio=self._mailer.studio)
            await self._mailer.add(tx, user.email, mail)

        await self._databases.central.run(TransactionStep.TENANT, work)
        self._mailer.wakeup.notify()
        log.info("account.password_changed", user_id=user.id)

    async def change_email(self, user: User, *, email: str, password: str) -> bool:
        """Change the address, or mail a link that changes it to the new address. For the current address, the link only
        verifies it. Returns whether the address has already been changed."""
        if (problem := email_problem(email)) is not None:
            raise InvalidInput(errors={"email": problem})
        await self._require_password(user, password, field="password")
        address, secret = normalize_email(email), secrets.token_urlsafe(32)

        async def change(tx: Tx) -> None:
            try:
                await tenants.set_email(tx, user.id, address, is_verified=False)
            except Conflict:
                raise Conflict(TAKEN) from None
            await account_links.invalidate_links(tx, user.id)

        async def ask(tx: Tx) -> None:
            if await account_links.count_mailed(tx, address, seconds=PER_SECONDS) >= MAX_MAILS:
                return
            owner = await tenants.by_email(tx, address)
            await account_links.create(
                tx,
                token_hash=hash_secret(secret),
                kind=LinkKind.EMAIL,
                lifetime_seconds=RESET_SECONDS,
                user_id=user.id,
                email=address,
            )
            studio = self._mailer.studio
            if owner is None or owner.id == user.id:
                mail = mail_texts.email_mail(f"{self._base_url}/confirm#{secret}", studio=studio)
            else:
                # The answer does not reveal that the address has an account.
                mail = mail_texts.already_registered_mail(f"{self._base_url}/sign-in", studio=studio)
            await self._mailer.add(tx, address, mail)

        await self._databases.central.run(TransactionStep.TENANT, ask if self._mailer.is_enabled else change)
        self._mailer.wakeup.notify()
        log.info("account.email_change_asked", user_id=user.id)
        return not self._mailer.is_enabled

    async def find_confirming(self, secret: str) -> User:
        """Return the user of a valid link, still with the current address."""
        async with self._databases.central.read() as tx:
            user, _email = await _confirmation(tx, await account_links.find(tx, hash_secret(secret), [LinkKind.EMAIL]))
        return user

    async def confirm_email(self, secret: str) -> User:
        """Set the address that a link was mailed to, mark it as verified, and notify the old address."""

        async def work(tx: Tx) -> User:
            user, email = await _confirmation(tx, await account_links.use(tx, hash_secret(secret), [LinkKind.EMAIL]))
            await tenants.set_email(tx, user.id, email, is_verified=True)
            if email != user.email:
                # Links to the old address must not open the account.
                await account_links.invalidate_links(tx, user.id)
                notice = mail_texts.changed_email_mail(email, studio=self._mailer.studio)
                await self._mailer.add(tx, user.email, notice)
            return replace(user, email=email)

        try:
            user = await self._databases.central.run(TransactionStep.TENANT, work)
        except Conflict:
            # Another account has taken the address in the meantime.
            raise NotFound(EXPIRED_EMAIL) from None
        self._mailer.wakeup.notify()
        log.info("account.email_confirmed", user_id=user.id)
        return user

    async def delete(self, user: User, *, password: str) -> None:
        """Delete the account immediately, and its data in the background."""
        before = await self._require_password(user, password, field="password")
        await self._delete(user, password_hash=before)

    async def delete_by_admin(self, user_id: str, *, by: User | None = None) -> User:
        """Delete the account of another user."""
        async with self._databases.central.read() as tx:
            user = await tenants.user(tx, user_id)
        if user is None:
            raise NotFound("There is no such user.")
        await self._delete(user, by=by)
        return user

    async def _delete(self, user: User, *, password_hash: str | None = None, by: User | None = None) -> None:
        async def work(tx: Tx) -> None:
            if await tenants.lock_admins(tx) == {user.id}:
                raise Conflict(ONLY_ADMIN)
            if password_hash is not None and not await tenants.lock_password(tx, user.id, password_hash):
                raise InvalidInput(WRONG_PASSWORD, errors={"password": WRONG_PASSWORD})
            await account_links.invalidate_links_by(tx, user.id)
            await account_links.delete_mailed(tx, user.email)
            await tenants.delete_user(tx, user)
            await mails.remove_of(tx, user.email)
            await self._mailer.add(tx, user.email, mail_texts.deleted_account_mail(studio=self._mailer.studio))

        await self._databases.central.run(TransactionStep.TENANT, work)
        self._mailer.wakeup.notify()
        log.info("account.deleted", user_id=user.id, tenant_id=user.tenant_id, by=user.id if by is None else by.id)

    async def _require_password(self, user: User, password: str, *, field: str) -> str:
        """Return the hash of the current password."""
        try:
            _user, hashed = await self._sign_in.sign_in(email=user.email, password=password)
        except Unauthorized:
            raise InvalidInput(WRONG_PASSWORD, errors={field: WRONG_PASSWORD}) from None
        return hashed


async def _confirmation(tx: Tx, link: LinkRecord | None) -> tuple[User, str]:
    """Return the user of a link and the new address."""
    user = await tenants.user(tx, link.user_id) if link is not None and link.user_id is not None else None
    if link is None or link.email is None or user is None or await tenants.is_disabled(tx, user.id):
        raise NotFound(EXPIRED_EMAIL)
    return user, link.email
