"""A process that scales fleets and can be killed, with little patience: `python -m tests.fleet.leading`."""

import asyncio

from comfyrelay.fleet.loop import ScalingLoop
from comfyrelay.fleet.providers.registry import Providers, Surroundings
from comfyrelay.logs import log_as_json
from comfyrelay.server.base.secrets import load_secrets
from comfyrelay.services.engine import Engine
from comfyrelay.settings import load_settings

TTL_SECONDS = 3.0
TICK_SECONDS = 0.5


async def main() -> None:
    log_as_json("info")
    settings = load_settings()
    secrets = load_secrets(settings)
    around = Surroundings(settings=settings, api_url=settings.base_url, secrets=secrets.fleet)
    async with Engine(settings, signing_secrets=secrets.signing) as engine:
        engine.scaling.leadership.ttl_seconds = TTL_SECONDS
        await ScalingLoop(engine, Providers(around), tick_seconds=TICK_SECONDS).run()


if __name__ == "__main__":
    asyncio.run(main())
