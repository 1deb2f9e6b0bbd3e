"""Messages of unknown kinds do not reach runs and are logged once."""

import json

from structlog.testing import capture_logs

from comfyrelay.comfyui.runs.message_router import KNOWN_MESSAGES, MessageRouter
from comfyrelay.comfyui.runs.unknown_kinds import MAX_UNKNOWN_KINDS
from comfyrelay.http_client import Http

# A frame of a kind that no version sends so far.
UNKNOWN_FRAME = (99).to_bytes(4, "big") + b"content"


def message(kind: str) -> str:
    return json.dumps({"type": kind, "data": {"prompt_id": "unknown", "novelty": [1, {"deep": None}]}})


async def test_unknown_kind_is_logged_once() -> None:
    router = MessageRouter(Http("http://127.0.0.1:1"), on_lost=lambda: None)
    with capture_logs() as logs:
        for _ in range(3):
            router.handle_message(message("hologram_ready"))
            router.handle_message(UNKNOWN_FRAME)
            router.handle_message(b"")
            router.handle_message("no JSON")
        for kind in KNOWN_MESSAGES:
            router.handle_message(message(kind))
    assert [(log["event"], log["kind"]) for log in logs] == [("comfyui.unknown_message", "hologram_ready")]


async def test_number_of_logged_kinds_is_bounded() -> None:
    router = MessageRouter(Http("http://127.0.0.1:1"), on_lost=lambda: None)
    with capture_logs() as logs:
        for number in range(2 * MAX_UNKNOWN_KINDS):
            router.handle_message(message(f"kind-{number}"))
    assert len(logs) == MAX_UNKNOWN_KINDS
