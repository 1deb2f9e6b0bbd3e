"""The scaler as a process: over the databases of the server, until it is told to stop."""

import asyncio
from collections.abc import Callable

from comfyrelay.autoscaling.kubernetes.decision import Deciding
from comfyrelay.autoscaling.kubernetes.deletion_cost import DeletionCosts
from comfyrelay.autoscaling.kubernetes.pods import pods_of_this_cluster
from comfyrelay.autoscaling.kubernetes.scaler import serving
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.system.signals import on_stop


async def run_scaler(settings: Settings, *, bind: str, on_ready: Callable[[int], None]) -> None:
    stop = asyncio.Event()
    pods = pods_of_this_cluster()
    async with Engine(settings) as engine:
        await engine.databases.open(settings.database_wait_seconds)
        wakeup = engine.notify_channel.subscribe()
        await engine.notify_channel.start()
        deciding = Deciding(engine.scaling, pods)
        costs = DeletionCosts(pods) if pods is not None else None
        with on_stop(lambda _number: stop.set()):
            async with serving(deciding.desired_of, wakeup.wait, bind=bind, costs=costs) as port:
                on_ready(port)
                await stop.wait()
    if pods is not None:
        await pods.close()
