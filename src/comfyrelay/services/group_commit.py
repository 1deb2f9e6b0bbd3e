"""Group commit: calls that arrive while one batch is being worked on share the next one.

Each caller gets its answer only after the transaction that contains it has committed, so batching costs latency and
never truth.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class GroupCommit(Generic[Request, Answer]):
    def __init__(
        self,
        handle: Callable[[Sequence[Request]], Awaitable[Sequence[Answer | Exception]]],
        *,
        at_once: int = 256,
    ) -> None:
        self._handle = handle
        self._at_once = at_once
        self._waiting: list[tuple[Request, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def call(self, request: Request) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def idle(self) -> None:
        """Wait for what was begun. Whoever asked for it may have gone."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._at_once], self._waiting[self._at_once :]
                await self._answer(batch)
        finally:
            self._task = None

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
