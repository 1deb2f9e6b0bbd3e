"""Subscribers of a live stream. A subscriber with too many unread messages must reload."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")

MAX_UNREAD = 64


class Reset:
    """The subscriber missed changes and must reload."""


@dataclass(kw_only=True, eq=False, slots=True)
class StreamMessage(Generic[W]):
    """A message to subscribers. A keep-alive has no content.

    `cursor` is set if this message completes everything up to that cursor.
    """

    content: W | Reset | None
    cursor: str | None = None
    # The first connection that sends the message sets this.
    encoded: str | None = None


class Subscriber(Generic[W]):
    def __init__(self) -> None:
        self._unread: deque[StreamMessage[W]] = deque()
        self.has_messages = asyncio.Event()

    def push(self, message: StreamMessage[W]) -> None:
        if len(self._unread) >= MAX_UNREAD:
            self._unread.clear()
            message = StreamMessage(content=Reset(), cursor=message.cursor)
        self._unread.append(message)
        self.has_messages.set()

    def pop(self) -> StreamMessage[W] | None:
        message = self._unread.popleft() if self._unread else None
        if not self._unread:
            self.has_messages.clear()
        return message
