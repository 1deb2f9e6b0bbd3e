"""EC2 instance metadata (IMDSv2)."""

import asyncio
import re
import time
from datetime import datetime
from email.utils import parsedate_to_datetime

import httpx

from comfyrelay.http_client import BoundedClient

TOKEN = "X-aws-ec2-metadata-token"
TOKEN_TTL = f"{TOKEN}-ttl-seconds"
# The longest lifetime that EC2 grants.
TTL_SECONDS = 21600
CONNECT_SECONDS = 1.0
ANSWER_SECONDS = 2.0
# Off EC2, another service (another cloud, a captive portal) may respond at this address.
_TOKEN = re.compile(r"[!-~]{1,1024}")


class Imds:
    """A client that never raises an error and never waits long. After a timeout, the client pauses for `pause_seconds`,
    because off EC2, each call would time out."""

    def __init__(self, base_url: str, *, pause_seconds: float = 2.0) -> None:
        # The address is link-local, so a proxy would return the metadata of another machine.
        self._http = BoundedClient(
            base_url=base_url, timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS), trust_env=False
        )
        self._pause_seconds = pause_seconds
        self._silent_until = 0.0
        self._token = ""
        self._token_until = 0.0
        # Whether EC2 metadata has ever been found.
        self.is_available = False

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> tuple[str, datetime | None] | None:
        """Return the value at a path of `/latest/meta-data` and EC2's clock, or `None`."""
        return await self._get(f"/latest/meta-data/{path}")

    async def identity(self) -> str | None:
        """Return the identity document of this instance, signed by AWS, as one line."""
        found = await self._get("/latest/dynamic/instance-identity/rsa2048")
        return "".join(found[0].split()) if found else None

    async def _get(self, path: str) -> tuple[str, datetime | None] | None:
        if time.monotonic() < self._silent_until:
            return None
        try:
            async with asyncio.timeout(CONNECT_SECONDS + ANSWER_SECONDS):
                answer = await self._request(path)
        except (httpx.HTTPError, TimeoutError):
            answer = None
        if answer is None:
            self._silent_until = time.monotonic() + self._pause_seconds
            return None
        return (answer.text.strip(), _date(answer)) if answer.status_code == httpx.codes.OK else None

    async def text(self, path: str) -> str | None:
        """Return the value at a path of `/latest/meta-data`, or `None`."""
        found = await self.get(path)
        return found[0] if found else None

    async def _request(self, path: str) -> httpx.Response | None:
        """Return the response, or `None` without a token."""
        answer = None
        for _ in range(2):
            if not (token := await self._valid_token()):
                return None
            answer = await self._http.get(path, headers={TOKEN: token})
            if answer.status_code != httpx.codes.UNAUTHORIZED:
                break
            # The token expired early, because the machine was stopped and started, or its clock jumped.
            self._token = ""
        return answer

    async def _valid_token(self) -> str:
        if self._token and time.monotonic() < self._token_until:
            return self._token
        asked_at = time.monotonic()
        answer = await self._http.put("/latest/api/token", headers={TOKEN_TTL: str(TTL_SECONDS)})
        if answer.status_code != httpx.codes.OK or not _TOKEN.fullmatch(answer.text):
            return ""
        ttl = answer.headers.get(TOKEN_TTL, "")
        # Renew the token early, so that it does not expire during a request.
        self._token_until = asked_at + 0.9 * (int(ttl) if ttl.isdecimal() else TTL_SECONDS)
        self._token = answer.text
        self.is_available = True
        return self._token


def _date(answer: httpx.Response) -> datetime | None:
    try:
        date = parsedate_to_datetime(answer.headers.get("Date", ""))
    except ValueError:
        return None
    return date if date.tzinfo else None
