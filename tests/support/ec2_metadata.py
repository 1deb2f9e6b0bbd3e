"""A simulator of EC2's instance metadata on a socket.

Every request needs a token, as in version 2. There are no notices until one is armed, from the test or from another
process with `PUT /_control/<path>`, whose body becomes the response. `DELETE` removes it.
"""

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from aiohttp.typedefs import Handler

from tests.support.world import PATIENCE_SECONDS

TOKEN = "X-aws-ec2-metadata-token"
SPOT = "spot/instance-action"
REBALANCE = "events/recommendations/rebalance"
IDENTITY = "dynamic/instance-identity/rsa2048"
LIFECYCLE = "autoscaling/target-lifecycle-state"


class Metadata:
    """The simulated service; its clock is `clock_seconds` ahead, and it reports `token_seconds` as token lifetime.

    Tokens are valid until `expire_tokens` is called. While `refuses` is set, every connection is cut.
    """

    def __init__(
        self,
        *,
        instance_id: str = "i-0123456789abcdef0",
        region: str = "us-east-1",
        instance_type: str = "g5.xlarge",
        life_cycle: str = "spot",
        clock_seconds: float = 0.0,
        token_seconds: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.url = ""
        self._place = (host, port)
        self.clock_seconds = clock_seconds
        self.token_seconds = token_seconds
        self.asked: Counter[str] = Counter()
        self.tokens_given = 0
        self.refuses = False
        self.refused = 0
        self._answers = {
            "instance-id": instance_id,
            "placement/region": region,
            "instance-type": instance_type,
            "instance-life-cycle": life_cycle,
            LIFECYCLE: "InService",
        }
        self._tokens: set[str] = set()
        self._news = asyncio.Condition()
        app = web.Application(middlewares=[self._guard])
        app.router.add_put("/latest/api/token", self._issue_token)
        app.router.add_get("/latest/meta-data/{path:.+}", self._answer)
        app.router.add_get("/latest/{path:dynamic/.+}", self._answer)
        app.router.add_route("*", "/_control/{path:.+}", self._control)
        self._runner = web.AppRunner(app)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, *self._place).start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.clock_seconds)

    def interrupt(self, *, seconds: float = 120.0, action: str = "terminate") -> None:
        """Announce a Spot interruption in `seconds` by the clock of this server."""
        self.arm(SPOT, {"action": action, "time": _stamp(self.now() + timedelta(seconds=seconds))})

    def recommend_rebalance(self) -> None:
        self.arm(REBALANCE, {"noticeTime": _stamp(self.now())})

    def end_by_group(self) -> None:
        """Announce the termination by the Auto Scaling group."""
        self.arm(LIFECYCLE, "Terminated")

    def arm(self, path: str, answer: str | dict[str, Any]) -> None:
        self._answers[path] = answer if isinstance(answer, str) else json.dumps(answer)

    def disarm(self, path: str) -> None:
        self._answers.pop(path, None)

    def expire_tokens(self) -> None:
        self._tokens.clear()

    async def until_asked(self, path: str, times: int = 1) -> None:
        """Wait until a path has been requested `times` more times."""
        goal = self.asked[path] + times
        await self.until(lambda: self.asked[path] >= goal)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            await self._news.wait_for(condition)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.refuses and not request.path.startswith("/_control/"):
            async with self._news:
                self.refused += 1
                self._news.notify_all()
            assert request.transport is not None
            request.transport.abort()
        return await handler(request)

    async def _issue_token(self, request: web.Request) -> web.Response:
        requested = request.headers.get(f"{TOKEN}-ttl-seconds", "")
        if not requested.isdecimal() or not 1 <= int(requested) <= 21600:
            return web.Response(status=400)
        token = secrets.token_urlsafe(40)
        self._tokens.add(token)
        self.tokens_given += 1
        seconds = requested if self.token_seconds is None else str(self.token_seconds)
        return web.Response(text=token, headers={f"{TOKEN}-ttl-seconds": seconds})

    async def _answer(self, request: web.Request) -> web.Response:
        if request.headers.get(TOKEN) not in self._tokens:
            return web.Response(status=401)
        path = request.match_info["path"]
        async with self._news:
            self.asked[path] += 1
            self._news.notify_all()
        answer = self._answers.get(path)
        return web.Response(
            status=200 if answer is not None else 404,
            text=answer or "",
            headers={"Date": format_datetime(self.now(), usegmt=True)},
        )

    async def _control(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        if request.method == "PUT":
            self.arm(path, await request.text())
        elif request.method == "DELETE":
            self.disarm(path)
        else:
            return web.Response(status=405)
        return web.Response(status=204)


def _stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
