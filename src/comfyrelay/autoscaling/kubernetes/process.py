"""The scaler process. It reads the server's databases and answers KEDA until SIGTERM."""

import asyncio
from collections.abc import Callable

from comfyrelay.autoscaling.kubernetes.decision import ReplicaDecisions
from comfyrelay.autoscaling.kubernetes.deletion_cost import DeletionCosts
from comfyrelay.autoscaling.kubernetes.pods import connect_to_cluster
from comfyrelay.autoscaling.kubernetes.scaler import serve_scaler
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.system.signals import on_stop


async def run_scaler(settings: Settings, *, bind: str, on_ready: Callable[[int], None]) -> None:
    stop = asyncio.Event()
    pods = connect_to_cluster()
    async with Engine(settings) as engine:
        await engine.databases.open(settings.database_wait_seconds)
        wakeup = engine.notify_channel.subscribe()
        await engine.notify_channel.start()
        decisions = ReplicaDecisions(engine.autoscaling, pods)
        costs = DeletionCosts(pods) if pods is not None else None
        with on_stop(lambda _number: stop.set()):
            async with serve_scaler(decisions.desired_replicas, wakeup.wait, bind=bind, costs=costs) as port:
                on_ready(port)
                await stop.wait()
    if pods is not None:
        await pods.close()
