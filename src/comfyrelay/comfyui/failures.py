"""Convert execution errors into `ComfyError`s with a fault and a sentence without server internals."""

import json
import re
from collections.abc import Mapping
from typing import Any

from comfyrelay.error_text import user_sentence
from comfyrelay.errors import ComfyError, DeviceFault, Fault, ModelUnreadable, NodeFailed, OutOfMemory, PaymentRequired

_MEMORY = re.compile(r"out ?of ?memory|allocation on device|can't allocate memory|cannot allocate memory", re.I)
_DEVICE = re.compile(
    r"(cuda|cudnn\w*|cublas\w*|hip) error|illegal memory access|device-side assert|unspecified launch failure", re.I
)
_MODEL_FILE = re.compile(
    r"deserializing header|safetensor|unpicklingerror|invalid load key|pytorchstreamreader"
    r"|could not detect (the type of this model|model type)|^model in folder .{1,200} not found",
    re.I,
)
_DISK = re.compile(r"no space left on device|read-only file system|permission denied", re.I)
_ODD_SIZE = re.compile(r"libx264|width not divisible|height not divisible", re.I)
# Errors of the server, or of a service it uses, rather than of the graph.
_SERVER_TYPES = frozenset(
    {
        *("ImportError", "ModuleNotFoundError", "FileNotFoundError", "PermissionError"),
        *("ConnectionError", "ConnectionResetError", "ConnectionRefusedError"),
        *(
            "ModelDownloadError",
            "ImageDownloadError",
            "PanicError",
            "ServiceError",
            "WebSocketError",
            "DispatcherError",
        ),
    }
)
_PAYMENT_TYPES = frozenset({"InsufficientFundsError", "InactiveSubscriptionError"})


def mentions_out_of_memory(error: str) -> bool:
    """Whether an error message says that memory ran out."""
    return _MEMORY.search(error) is not None


def explain_execution_error(data: Mapping[str, Any]) -> ComfyError:
    """Convert an `execution_error` message into an exception."""
    node_id = str(data["node_id"]) if data.get("node_id") is not None else None
    exception = str(data.get("exception_type") or "").rpartition(".")[2]
    message = str(data.get("exception_message") or "")
    where = f"{data.get('node_type') or 'Node'} ({node_id})" if node_id else str(data.get("node_type") or "The run")
    raw = json.dumps(dict(data), ensure_ascii=False, default=str)[:200_000]
    return _classify_error(where, exception, message, node_id=node_id, raw=raw)


def explain_service_error(message: str, *, node_id: str | None, class_type: str | None) -> ComfyError:
    """Convert the failure of a job on another service, whose message is a sentence for users."""
    has_place = node_id is None or f"({node_id})" in message
    text = user_sentence(message) if has_place else f"{class_type or 'Node'} ({node_id}): {user_sentence(message)}"
    if _MEMORY.search(message):
        return OutOfMemory(text, node_id=node_id, raw=message)
    return NodeFailed(text, fault=_fault("", message), node_id=node_id, raw=message)


def _classify_error(where: str, exception: str, message: str, *, node_id: str | None, raw: str) -> ComfyError:
    if exception in ("OutOfMemoryError", "OOMError", "MemoryError") or _MEMORY.search(message):
        return OutOfMemory(f"{where}: there was not enough memory", node_id=node_id, raw=raw)
    if _DEVICE.search(message):
        text = f"{where}: the GPU is in a bad state, ComfyUI must be restarted"
        return DeviceFault(text, node_id=node_id, raw=raw)
    if exception in _PAYMENT_TYPES:
        return PaymentRequired(f"{where}: {user_sentence(message)}", node_id=node_id, raw=raw)
    if _MODEL_FILE.search(message):
        return ModelUnreadable(f"{where}: {user_sentence(message)}", node_id=node_id, raw=raw)
    return NodeFailed(
        f"{where}: {_reason(exception, message)}", fault=_fault(exception, message), node_id=node_id, raw=raw
    )


def _reason(exception: str, message: str) -> str:
    if exception == "UnidentifiedImageError":
        return "the file is not an image that can be read"
    if exception == "InvalidDataError":
        return "the file is not a video that can be read"
    if exception == "ExternalError" and _ODD_SIZE.search(message):
        return "H.264 needs an even width and height: scale the frames first"
    return user_sentence(message or exception)


def _fault(exception: str, message: str) -> Fault:
    """Return the fault. A node that fails on one server fails on all, unless the error concerns the server itself."""
    if exception in _SERVER_TYPES or _DISK.search(message):
        return Fault.WORKER
    return Fault.JOB
