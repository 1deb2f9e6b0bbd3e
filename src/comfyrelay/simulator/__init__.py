"""A simulator of ComfyUI and Comfy Cloud: it speaks their APIs, runs real nodes on the CPU, and fails on request."""

from comfyrelay.simulator.active_misbehaviours import ActiveMisbehaviour, read_misbehaviour
from comfyrelay.simulator.gpu import SimulatedGpuOptions, read_gpu
from comfyrelay.simulator.main import serve, slow_from_text
from comfyrelay.simulator.misbehaviour import (
    DropSocket,
    EmptyOutputs,
    EndAs,
    ErrorAfterQueueing,
    ErrorBeforeQueueing,
    Fail,
    LateHistory,
    LostFile,
    Misbehaviour,
    MissingModel,
    OutOfMemory,
    Refuse,
    Restart,
    SilentSocket,
    Slow,
    SlowHttp,
    Stuck,
    Vary,
)
from comfyrelay.simulator.request_log import Received, SimulatorLog
from comfyrelay.simulator.server import Simulator

__all__ = [
    "ActiveMisbehaviour",
    "DropSocket",
    "EmptyOutputs",
    "EndAs",
    "ErrorAfterQueueing",
    "ErrorBeforeQueueing",
    "Fail",
    "LateHistory",
    "LostFile",
    "Misbehaviour",
    "MissingModel",
    "OutOfMemory",
    "Received",
    "Refuse",
    "Restart",
    "SilentSocket",
    "SimulatedGpuOptions",
    "Simulator",
    "SimulatorLog",
    "Slow",
    "SlowHttp",
    "Stuck",
    "Vary",
    "read_gpu",
    "read_misbehaviour",
    "serve",
    "slow_from_text",
]
