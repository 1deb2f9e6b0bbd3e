"""`comfyrelay simulator`."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from comfyrelay.errors import InvalidInput
from comfyrelay.simulator.gpu import SimulatedGpuOptions
from comfyrelay.simulator.misbehaviour import Misbehaviour, Slow
from comfyrelay.simulator.options import Options
from comfyrelay.simulator.server import Simulator
from comfyrelay.system.signals import on_stop

_DEFAULTS = Options()


async def serve(
    *,
    host: str = _DEFAULTS.host,
    port: int = 8188,
    folder: Path | None = None,
    checkpoints: Iterable[str] = tuple(_DEFAULTS.models["checkpoints"]),
    version: str = _DEFAULTS.version,
    vram_bytes: int = _DEFAULTS.vram_bytes,
    preview_method: str = _DEFAULTS.preview_method,
    step_seconds: float = _DEFAULTS.step_seconds,
    gpu: SimulatedGpuOptions | None = None,
    arguments: Sequence[str] = (),
    cloud: bool = False,
    api_key: str = _DEFAULTS.api_key,
    misbehaviour: Iterable[Misbehaviour] = (),
    on_ready: Callable[[Simulator], None] = lambda _simulator: None,
) -> None:
    """Serve until cancelled, SIGTERM or Ctrl-C; `on_ready` is called once the port is open."""
    simulator = Simulator(
        host=host,
        port=port,
        folder=folder,
        models={"checkpoints": list(checkpoints)},
        version=version,
        vram_bytes=vram_bytes,
        preview_method=preview_method,
        step_seconds=step_seconds,
        gpu=gpu,
        arguments=arguments,
        cloud=cloud,
        api_key=api_key,
        misbehaviour=misbehaviour,
    )
    is_over = asyncio.Event()
    with on_stop(lambda _number: is_over.set()):
        async with simulator:
            on_ready(simulator)
            await is_over.wait()


def slow_from_text(text: str) -> Slow:
    """Parse `CLASS=SECONDS`."""
    class_type, _, seconds = text.partition("=")
    try:
        return Slow(class_type=class_type or None, seconds=float(seconds))
    except ValueError:
        raise InvalidInput(f"Write CLASS=SECONDS, not {text!r}.") from None
