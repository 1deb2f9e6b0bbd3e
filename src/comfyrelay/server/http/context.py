"""What every request has at hand: the engine and what belongs to the server itself."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Annotated, Any

from fastapi import Depends, Request

from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.workers import Worker
from comfyrelay.errors import ComfyRelayError
from comfyrelay.server.http.cache import Cached
from comfyrelay.server.http.limits import RateLimit
from comfyrelay.server.http.metrics import ServerMetrics
from comfyrelay.server.http.secrets import Secrets
from comfyrelay.services.accounts.sign_in import hash_of
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings

SESSION_COOKIE = "comfyrelay_session"
# More than from one address: who guesses from many must not keep somebody out too easily.
GUESSES_FACTOR = 3
# Somebody whose receiver was down goes through a list of them.
REDELIVERIES_FACTOR = 6
About = dict[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """Whom a desk serves, and how it knows them and the worker in its own process."""

    user: User
    secret: str = field(repr=False)
    # for this process's life alone: what the owner's own programs send
    pass_secret: str = field(repr=False)
    # browsers do not tell ports apart, and two desks must not sign each other's pages out
    session_cookie: str
    worker_ids: Collection[str]
    # for this process's life alone: nobody else can take the workers' names
    worker_secret: str = field(repr=False)
    # what is kept of a run, by its lease: what a worker reports, but for what only the desk itself can know
    about_run: Callable[[str, About], About]
    # what the session of a secret is called; nothing for one that is let in no longer, though its token still works
    session_of: Callable[[str], Awaitable[str | None]]

    def is_owner(self, secret: str) -> bool:
        return any(compare_digest(secret.encode(), each.encode()) for each in (self.secret, self.pass_secret))

    def is_worker(self, secret: str) -> bool:
        """Whether this is one of the desk's own workers."""
        return compare_digest(secret.encode(), self.worker_secret.encode())


@dataclass(kw_only=True)
class Context:
    engine: Engine
    secrets: Secrets
    # on a desk
    owner: Owner | None = None
    registrations: RateLimit = field(init=False)
    sign_ins: RateLimit = field(init=False)
    # the same for one account, from wherever it is tried
    guesses: RateLimit = field(init=False)
    # messages that a tenant has sent to a place of its choice
    webhook_tests: RateLimit = field(init=False)
    # those that it has sent once more
    redeliveries: RateLimit = field(init=False)
    # set when the server is told to stop: whoever waits is answered at once
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.registrations = RateLimit(self.settings.requests_per_minute)
        self.sign_ins = RateLimit(self.settings.requests_per_minute)
        self.guesses = RateLimit(GUESSES_FACTOR * self.settings.requests_per_minute)
        self.webhook_tests = RateLimit(self.settings.requests_per_minute)
        self.redeliveries = RateLimit(REDELIVERIES_FACTOR * self.settings.requests_per_minute)
        self.metrics = ServerMetrics(self.engine)
        self.user_of: Cached[User] = Cached(self._user)
        self.worker_of: Cached[Worker] = Cached(self._worker)
        self._storage_origins: Sequence[str] | None = None

    @property
    def settings(self) -> Settings:
        return self.engine.settings

    @property
    def session_cookie(self) -> str:
        return self.owner.session_cookie if self.owner is not None else SESSION_COOKIE

    async def storage_origins(self) -> Sequence[str]:
        """Where browsers find files, beside this server; none while the storage cannot say."""
        if self._storage_origins is None:
            try:
                origin = await self.engine.objects.origin()
            except ComfyRelayError:
                return ()
            self._storage_origins = () if origin is None else (origin,)
        return self._storage_origins

    async def stop_waiting(self) -> None:
        """Answer everybody who waits, so that the server can stop."""
        self.stopping.set()
        self.engine.queue.stops.close()
        self.engine.jobs.events.close()
        self.engine.jobs.live.close()
        self.engine.operations.live.close()
        await self.engine.queue.polls.stop()

    async def session_of(self, secret: str) -> str | None:
        """What the session of this secret is called, empty where that says nothing; none for one that is let in no
        longer."""
        if self.owner is None or self.owner.is_owner(secret):
            return ""
        return await self.owner.session_of(secret)

    def forget_worker(self, worker_id: str) -> None:
        """Something about the worker has changed that its next call must know."""
        self.worker_of.forget(lambda worker: worker.worker_id == worker_id)

    def forget_user(self, user: User) -> None:
        """One of the user's tokens works no longer."""
        self.user_of.forget(lambda other: other.id == user.id)

    async def _user(self, secret: str) -> User | None:
        if self.owner is not None and self.owner.is_owner(secret):
            return self.owner.user
        return await self.engine.accounts.sign_in.owner(secret)

    async def _worker(self, secret: str) -> Worker | None:
        return await self.engine.fleet.workers.by_token(hash_of(secret))


# A dependency that is no coroutine is run in a thread of its own, which costs more than most of our answers.
async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


ContextOf = Annotated[Context, Depends(_context)]
