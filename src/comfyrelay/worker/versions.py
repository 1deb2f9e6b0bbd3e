"""Compare the version of a server with the version of this worker."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from comfyrelay import __version__
from comfyrelay.protocol.worker import PROTOCOL, VERSION_HEADER

_HEADER = re.compile(r"([0-9A-Za-z.+!-]{1,50}); protocol=([0-9]{1,9})")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerVersion:
    """The version of a server, from a response header that older servers do not send."""

    version: str | None
    protocol: int

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        found = _HEADER.fullmatch(headers.get(VERSION_HEADER, ""))
        return cls(version=found[1], protocol=int(found[2])) if found else cls(version=None, protocol=0)

    def difference(self, url: str) -> str | None:
        """Return a sentence about the older side and what to do; `None` if both have the same version."""
        own, other = _order(__version__, PROTOCOL), _order(self.version, self.protocol)
        if own == other:
            return None
        which = f"version {self.version}" if self.version is not None else "an older version"
        if other < own:
            return (
                f"The server at {url} has {which} and is older than this worker ({__version__}): update the server, or "
                "install the server's version on this machine."
            )
        return f"The server at {url} has {which} and is newer than this worker ({__version__}): update the worker."


def _order(version: str | None, protocol: int) -> tuple[int, list[int]]:
    return protocol, [int(number) for number in re.findall(r"[0-9]+", version or "")[:3]]
