"""Active misbehaviours, and how often each may still happen."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import fields as fields_of
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from comfyrelay.errors import InvalidInput
from comfyrelay.simulator import misbehaviour
from comfyrelay.simulator.misbehaviour import Misbehaviour

Kind = TypeVar("Kind", bound=Misbehaviour)


class ActiveMisbehaviour(Generic[Kind]):
    """An active misbehaviour. `happened` counts its occurrences; `end` stops it."""

    def __init__(self, what: Kind) -> None:
        self.what = what
        self.happened = 0
        self._ended = asyncio.Event()

    @property
    def is_active(self) -> bool:
        return not self._ended.is_set() and (self.what.times is None or self.happened < self.what.times)

    def end(self) -> None:
        """Stop it, and release nodes that are stuck in it."""
        self._ended.set()

    async def wait_until_ended(self) -> None:
        await self._ended.wait()


class ActiveMisbehaviours:
    def __init__(self) -> None:
        self._active: list[ActiveMisbehaviour[Any]] = []

    def add(self, what: Kind) -> ActiveMisbehaviour[Kind]:
        active = ActiveMisbehaviour(what)
        self._active.append(active)
        return active

    def clear(self) -> None:
        for active in self._active:
            active.end()
        self._active.clear()

    def take(
        self, kind: type[Kind], classes: Collection[str] = (), *, such: Callable[[Kind], bool] = lambda _: True
    ) -> ActiveMisbehaviour[Kind] | None:
        """Return the first active one of this kind that matches the node classes, and count it."""
        for active in self._active:
            what = active.what
            if not isinstance(what, kind) or not active.is_active or not such(what):
                continue
            if what.class_type is None or what.class_type in classes:
                active.happened += 1
                return active
        return None


def read_misbehaviour(fields: dict[str, Any]) -> Misbehaviour:
    """Parse a misbehaviour from JSON: its class is `name`, the rest are its fields."""
    values = dict(fields)
    name = values.pop("name", None)
    kind = getattr(misbehaviour, name) if name in misbehaviour.__all__ and name != "Misbehaviour" else None
    if kind is None:
        known = ", ".join(each for each in misbehaviour.__all__ if each != "Misbehaviour")
        raise InvalidInput(f"There is no misbehaviour {name!r}; there are {known}.")
    unknown = sorted(set(values) - {each.name for each in fields_of(kind)})
    if unknown:
        raise InvalidInput(f"{name} has no {', '.join(unknown)}.")
    try:
        return TypeAdapter[Misbehaviour](kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"{name}.{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
