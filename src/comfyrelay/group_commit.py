"""Group commit: calls that arrive while one batch is being worked on share the next one.

Each caller gets its answer only after the transaction that contains it has committed, so batching costs latency and
never truth.
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
        at_once: int = 256,
        size_of: Callable[[Request], int] = lambda _: 1,
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """A batch is full when the sizes of its requests come to `at_once`; `pause` lets more of them gather before
        each."""
        self._handle = handle
        self._at_once = at_once
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
        """For whoever does not wait for the answer, or not yet."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return future

    async def idle(self) -> None:
        """Wait for what was begun. Whoever asked for it may have gone."""
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
        while taken < len(self._waiting) and size < self._at_once:
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
    """How long work may be put off, so that more of it gathers: not at all while somebody waits for it."""

    def __init__(self) -> None:
        self._waiters = 0
        self._somebody_waits = asyncio.Event()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        self._waiters += 1
        self._somebody_waits.set()
        try:
            yield
        finally:
            self._waiters -= 1
            if not self._waiters:
                self._somebody_waits.clear()

    async def put_off(self, seconds: float) -> None:
        if seconds > 0 and not self._waiters:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._somebody_waits.wait(), seconds)
