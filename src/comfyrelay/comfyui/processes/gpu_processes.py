"""The cards of this machine, and what runs on them: all that deciding how many on one card needs to know."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Card:
    key: str
    name: str | None
    memory_bytes: int | None
    # base URLs that are up or starting
    processes: tuple[str, ...]


class Cards(Protocol):
    def cards(self) -> Sequence[Card]: ...

    async def add(self, card_key: str) -> str:
        """Start one more on this card and return its base URL once it answers; `ComfyRelayError` with the reason when
        it does not."""
        ...

    async def remove(self, card_key: str, url: str) -> None:
        """Let what runs there finish, then stop it, wherever it is by then; `NotFound` where there is none."""
        ...
