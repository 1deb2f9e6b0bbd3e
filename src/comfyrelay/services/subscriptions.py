"""Whoever follows what happens: handed messages, and told to begin anew after having left too many unread."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")

# What a follower may leave unread.
MAX_UNREAD = 64


class Reset:
    """What was missed cannot be told."""


@dataclass(kw_only=True, eq=False, slots=True)
class StreamMessage(Generic[W]):
    """`cursor` is set where all before it has been heard with it. `what` is nothing where there is nothing new."""

    what: W | Reset | None
    cursor: str | None = None
    # as it goes over the wire: made by the first who sends it
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

    def take(self) -> StreamMessage[W] | None:
        message = self._unread.popleft() if self._unread else None
        if not self._unread:
            self.has_messages.clear()
        return message
