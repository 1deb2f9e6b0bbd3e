"""The pending prompts, the running prompt and the history, which are all lost on a restart."""

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

# Number, prompt id, graph, extra data, output nodes and secrets. A tuple, because the real queue also compares tuples.
Item = tuple[float, str, dict[str, Any], dict[str, Any], list[str], dict[str, Any]]
_LONGEST_HISTORY = 10_000


class PromptQueue:
    def __init__(self, *, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._pending: list[Item] = []
        self._arrived = asyncio.Event()
        self.running: Item | None = None
        self.history: dict[str, dict[str, Any]] = {}
        self.counter = 0

    @property
    def remaining(self) -> int:
        return len(self._pending) + (self.running is not None)

    def put(self, item: Item) -> None:
        """Queue the item. As in ComfyUI, a duplicate number and id raises an error although the item is queued."""
        self._arrived.set()
        heapq.heappush(self._pending, item)
        self._on_change()

    async def get(self) -> Item:
        while not self._pending:
            self._arrived.clear()
            await self._arrived.wait()
        # heappop would compare graphs if number and id are equal.
        self.running = min(self._pending, key=_rank)
        self._pending.remove(self.running)
        self._pending.sort(key=_rank)
        self._on_change()
        return self.running

    def finish(self, entry: dict[str, Any]) -> None:
        """Move the running prompt to the history."""
        if self.running is None:
            return
        if len(self.history) >= _LONGEST_HISTORY:
            del self.history[next(iter(self.history))]
        self.history[self.running[1]] = {"prompt": list(self.running[:5]), **entry}
        self.running = None
        self._on_change()

    def delete(self, prompt_id: str) -> bool:
        """Remove a pending item. As in ComfyUI, the removal of the last item is announced twice."""
        if (item := self.find(prompt_id)) is None:
            return False
        self._pending.remove(item)
        self._pending.sort(key=_rank)
        self._on_change()
        if not self._pending:
            self._on_change()
        return True

    def clear(self) -> None:
        self._pending.clear()
        self._on_change()

    def snapshot(self) -> dict[str, list[list[Any]]]:
        """Return the response of `GET /queue`, which omits secrets."""
        running = [list(self.running[:5])] if self.running else []
        return {"queue_running": running, "queue_pending": [list(item[:5]) for item in self._pending]}

    def find(self, prompt_id: str) -> Item | None:
        return next((item for item in self._pending if item[1] == prompt_id), None)

    def history_page(self, *, max_items: int | None, offset: int) -> dict[str, dict[str, Any]]:
        """Return a slice of the history, oldest first. A negative offset selects the newest items."""
        if offset < 0 and max_items is not None:
            offset = len(self.history) - max_items
        first = max(offset, 0)
        last = None if max_items is None else first + max_items
        return dict(list(self.history.items())[first:last])


def _rank(item: Item) -> tuple[float, str]:
    return item[:2]
