"""A fake GPU rental service with a REST API on a socket, as the example `rented-gpus` uses it."""

from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from aiohttp.typedefs import Handler

TOKEN = "a token of the rental"


class Rental:
    """A fake rental. Its machines remain `starting` until `boots` is set.

    `throttled` is the number of calls to throttle, `refusal_status` the status of the answer to orders, if any.
    """

    def __init__(self) -> None:
        self.url = ""
        self.boots = False
        self.throttled = 0
        self.refusal_status: int | None = None
        self.instances: dict[str, dict[str, Any]] = {}
        self.prices = {"small": 0.4, "large": 1.5}
        self.orders: list[dict[str, Any]] = []
        self._by_key: dict[str, str] = {}
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/instances", self._list)
        app.router.add_post("/instances", self._rent)
        app.router.add_delete("/instances/{id}", self._end)
        app.router.add_get("/prices", self._prices)
        self._runner = web.AppRunner(app)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401, text="Who are you?")
        if self.throttled > 0:
            self.throttled -= 1
            return web.Response(status=429, text="Not so fast")
        return await handler(request)

    async def _list(self, request: web.Request) -> web.Response:
        label = request.query["label"]
        return web.json_response(
            [self._with_state(instance) for instance in self.instances.values() if instance["label"] == label]
        )

    async def _rent(self, request: web.Request) -> web.Response:
        if self.refusal_status is not None:
            return web.Response(status=self.refusal_status, text="none left in this region")
        order = await request.json()
        key = request.headers["Idempotency-Key"]
        if key not in self._by_key:
            self._by_key[key] = f"rented-{len(self._by_key) + 1}"
            self.orders.append(order)
            self.instances[self._by_key[key]] = {
                **{name: order[name] for name in ("label", "name", "type")},
                "id": self._by_key[key],
                "price": self.prices[order["type"]],
                "created_at": datetime.now(UTC).isoformat(),
            }
        return web.json_response(self._with_state(self.instances[self._by_key[key]]))

    async def _end(self, request: web.Request) -> web.Response:
        if self.instances.pop(request.match_info["id"], None) is None:
            return web.Response(status=404, text="gone")
        return web.Response(status=204)

    async def _prices(self, _request: web.Request) -> web.Response:
        return web.json_response(self.prices)

    def _with_state(self, instance: dict[str, Any]) -> dict[str, Any]:
        return {**instance, "state": "running" if self.boots else "starting"}
