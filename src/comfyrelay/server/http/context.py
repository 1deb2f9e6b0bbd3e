"""The context of all requests: the engine and the state of the server."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from hmac import compare_digest
from typing import Annotated, Any

from fastapi import Depends, Request

from comfyrelay.domain.records.accounts import TokenScope, User
from comfyrelay.domain.records.workers import Worker
from comfyrelay.errors import ComfyRelayError
from comfyrelay.extras import is_installed
from comfyrelay.server.http.cache import Cached
from comfyrelay.server.http.known_browsers import KnownBrowsers
from comfyrelay.server.http.limits import ConcurrencyLimit, RateLimit, SignInLimit
from comfyrelay.server.http.metrics import ServerMetrics
from comfyrelay.server.http.secrets import Secrets
from comfyrelay.services.accounts.sign_in import hash_secret
from comfyrelay.services.engine import Engine
from comfyrelay.web.logo import Logo

SESSION_COOKIE = "comfyrelay_session"
# After an outage of their receiver, users redeliver many webhooks in quick succession.
REDELIVERIES_FACTOR = 6
MAX_FORM_UPLOADS = 2
# How long an administrator can read the outages without the database.
REMEMBERED_SECONDS = 900.0
RunReport = dict[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The owner of a desk, and how the desk authenticates the owner and its own workers."""

    user: User
    secret: str = field(repr=False)
    # Sent by the owner's programs, and valid for the lifetime of this process.
    pass_secret: str = field(repr=False)
    # Unique for each desk: cookies ignore ports, and two desks must not overwrite each other's session.
    session_cookie: str
    worker_ids: Collection[str]
    # Valid for the lifetime of this process, so that no other process can register as one of its workers.
    worker_secret: str = field(repr=False)
    # Adds the desk's own details to the report of a run, by lease token.
    about_run: Callable[[str, RunReport], RunReport]
    # Returns the name of the session with this secret; `None` if it is no longer allowed, even if its token is valid.
    session_of: Callable[[str], Awaitable[str | None]]
    # Whether a token or session is the owner's, and not a guest's.
    is_of_owner: Callable[[str], Awaitable[bool]]

    def is_owner(self, secret: str) -> bool:
        return any(compare_digest(secret.encode(), own.encode()) for own in (self.secret, self.pass_secret))

    def is_worker(self, secret: str) -> bool:
        return compare_digest(secret.encode(), self.worker_secret.encode())


class Context:
    """The engine, the secrets and the rate limits of a server. Only a desk has an owner."""

    def __init__(self, engine: Engine, secrets: Secrets, owner: Owner | None = None) -> None:
        self.engine = engine
        self.settings = engine.settings
        self.secrets = secrets
        self.owner = owner
        self.logo = Logo.load(logo) if (logo := self.settings.studio_logo) is not None else None
        per_minute = self.settings.rate_limit_per_minute
        # Limits per address.
        self.registrations = RateLimit(per_minute)
        self.sign_ins = SignInLimit(per_minute)
        self.known_browsers = KnownBrowsers(secrets.signing)
        # A limit per tenant.
        self.webhook_tests = RateLimit(per_minute)
        # Limits per user. The files are in the temporary folder while they arrive.
        self.form_uploads = ConcurrencyLimit(MAX_FORM_UPLOADS)
        self.redeliveries = RateLimit(REDELIVERIES_FACTOR * per_minute)
        # Set when the server stops: parked requests are answered at once.
        self.stopping = asyncio.Event()
        self.metrics = ServerMetrics(engine)
        self.user_of: Cached[User] = Cached(self._user)
        # Also finds users by tokens that only ComfyUI's API accepts.
        self.comfyui_user_of: Cached[User] = Cached(partial(self._user, scope=TokenScope.COMFYUI))
        # Finds users by the secret of an editor session.
        self.editor_user_of: Cached[User] = Cached(engine.comfyui_api.sessions.find_user)
        self.worker_of: Cached[Worker] = Cached(self._worker)
        self.has_editor = self.settings.comfyui_url is not None and is_installed("editor")
        self._storage_origins: Sequence[str] | None = None
        # Administrators and the times when they were last authenticated, by the hash of their secret.
        self._admins: dict[str, tuple[float, User]] = {}

    def remember_admin(self, secret: str, user: User) -> None:
        """Remember an administrator, who can then read outages while the central database is down."""
        now = asyncio.get_running_loop().time()
        self._admins[hash_secret(secret)] = (now, user)
        self._admins = {key: entry for key, entry in self._admins.items() if entry[0] + REMEMBERED_SECONDS > now}

    def remembered_admin(self, secret: str) -> User | None:
        at, user = self._admins.get(hash_secret(secret), (float("-inf"), None))
        return user if at + REMEMBERED_SECONDS > asyncio.get_running_loop().time() else None

    @property
    def session_cookie(self) -> str:
        return self.owner.session_cookie if self.owner is not None else SESSION_COOKIE

    async def storage_origins(self) -> Sequence[str]:
        """Return the origins other than this server that files are loaded from; none while storage is unreachable."""
        if self._storage_origins is None:
            try:
                origin = await self.engine.objects.origin()
            except ComfyRelayError:
                return ()
            self._storage_origins = () if origin is None else (origin,)
        return self._storage_origins

    async def stop_waiting(self) -> None:
        """Answer all parked requests, so that the server can stop."""
        self.stopping.set()
        self.engine.queue.stop_requests.close()
        self.engine.jobs.events.close()
        self.engine.jobs.live.close()
        self.engine.operations.live.close()
        await self.engine.queue.polls.stop()

    async def session_of(self, secret: str) -> str | None:
        """Return the name of the session with this secret, which may be empty; `None` if it is no longer allowed."""
        if self.owner is None or self.owner.is_owner(secret):
            return ""
        return await self.owner.session_of(secret)

    def forget_worker(self, worker_id: str) -> None:
        """Drop cached lookups of a worker after a change."""
        self.worker_of.forget(lambda worker: worker.worker_id == worker_id)

    def forget_user(self, user: User) -> None:
        """Drop cached lookups of a user after a token was revoked."""
        for users in (self.user_of, self.comfyui_user_of, self.editor_user_of):
            users.forget(lambda other: other.id == user.id)
        self._admins = {key: entry for key, entry in self._admins.items() if entry[1].id != user.id}

    async def _user(self, secret: str, *, scope: TokenScope | None = None) -> User | None:
        if self.owner is not None and self.owner.is_owner(secret):
            return self.owner.user
        user = await self.engine.accounts.sign_in.find_owner(secret, scope=scope)
        if self.owner is not None and scope is TokenScope.COMFYUI:
            # Only the owner may use the ComfyUI API of a desk.
            is_own = user is not None and user.id == self.owner.user.id and await self.owner.is_of_owner(secret)
            return user if is_own else None
        return user

    async def _worker(self, secret: str) -> Worker | None:
        return await self.engine.workers.workers.by_token(hash_secret(secret))


# A coroutine, because FastAPI runs plain functions in a thread, which costs more than most requests.
async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


ContextOf = Annotated[Context, Depends(_context)]
