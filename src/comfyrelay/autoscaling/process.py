"""Run the autoscaling loop with all available providers."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from comfyrelay.autoscaling.loop import ScalingLoop, scaling
from comfyrelay.autoscaling.providers.registry import ProviderContext, Providers
from comfyrelay.services.engine import Engine


@asynccontextmanager
async def scaling_fleets(engine: Engine, *, secrets: Mapping[str, Sequence[str]]) -> AsyncIterator[ScalingLoop]:
    """Inside the block, scale every fleet that has autoscaling settings. Workers register with one of the `secrets`."""
    settings = engine.settings
    providers = Providers(ProviderContext(settings=settings, api_url=settings.base_url, secrets=secrets))
    try:
        async with scaling(engine, providers) as loop:
            yield loop
    finally:
        await providers.close()
