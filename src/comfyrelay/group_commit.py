"""Group commit: requests that arrive while one batch is processed share the next batch.

Each caller gets its answer after the transaction of its request has committed. Batching costs latency, not durability.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class GroupCommit(Generic[Request, Answer]):
    def __init__(
        self,
        handle: Callable[[Sequence[Request]], Awaitable[Sequence[Answer | Exception]]],
        *,
        max_size: int = 256,
        size_of: Callable[[Request], int] = lambda _: 1,
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """A batch is full when the sizes of its requests add up to `max_size`. `pause` runs before each batch, so that
        more requests can join it."""
        self._handle = handle
        self._max_size = max_size
        self._size_of = size_of
        self._pause = pause
        self._waiting: list[tuple[Request, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        return self._task is None

    async def call(self, request: Request) -> Answer:
        return await self.add(request)

    def add(self, request: Request) -> asyncio.Future[Answer]:
        """Add a request without waiting for its answer."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return future

    async def idle(self) -> None:
        """Wait until all requests are processed, including requests whose caller no longer waits."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                if self._pause is not None:
                    await self._pause()
                await self._answer(self._take())
        finally:
            self._task = None

    def _take(self) -> list[tuple[Request, asyncio.Future[Answer]]]:
        size = taken = 0
        while taken < len(self._waiting) and size < self._max_size:
            size += self._size_of(self._waiting[taken][0])
            taken += 1
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return batch

    async def _answer(self, batch: Sequence[tuple[Request, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._handle([request for request, _ in batch])
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


class Deferral:
    """Delays background work so that it can be batched. The delay ends as soon as a caller waits for the work."""

    def __init__(self) -> None:
        self._waiters = 0
        self._has_waiters = asyncio.Event()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        self._waiters += 1
        self._has_waiters.set()
        try:
            yield
        finally:
            self._waiters -= 1
            if not self._waiters:
                self._has_waiters.clear()

    async def delay(self, seconds: float) -> None:
        if seconds > 0 and not self._waiters:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_waiters.wait(), seconds)
