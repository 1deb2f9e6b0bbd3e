"""Wait for an event of a run instead of sleeping."""

import asyncio

from comfyrelay.comfyui import RunEvent


class Listener:
    """Collect the events of a run; `received` waits for the first event of a kind."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self._changed = asyncio.Event()

    def __call__(self, event: RunEvent) -> None:
        self.events.append(event)
        self._changed.set()

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    async def received(self, kind: type[RunEvent], **fields: object) -> None:
        while not any(
            isinstance(event, kind) and all(getattr(event, key) == value for key, value in fields.items())
            for event in self.events
        ):
            self._changed.clear()
            await self._changed.wait()
