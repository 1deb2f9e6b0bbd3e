"""Subscribers of a live stream. A subscriber with too many unread messages must reload."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")

MAX_UNREAD = 64


class Reset:
    """Changes were missed: the subscriber must reload."""


@dataclass(kw_only=True, eq=False, slots=True)
class StreamMessage(Generic[W]):
    """`cursor` is set if the subscriber has then received everything before it. `what` is `None` in a keep-alive."""

    what: W | Reset | None
    cursor: str | None = None
    # set by the first connection that sends it
    encoded: str | None = None


class Subscriber(Generic[W]):
    def __init__(self) -> None:
        self._unread: deque[StreamMessage[W]] = deque()
        self.has_messages = asyncio.Event()

    def push(self, message: StreamMessage[W]) -> None:
        if len(self._unread) >= MAX_UNREAD:
            self._unread.clear()
            message = StreamMessage(what=Reset(), cursor=message.cursor)
        self._unread.append(message)
        self.has_messages.set()

    def pop(self) -> StreamMessage[W] | None:
        message = self._unread.popleft() if self._unread else None
        if not self._unread:
            self.has_messages.clear()
        return message
