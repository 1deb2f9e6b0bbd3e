"""The history of a run can be read from servers of any version."""

from typing import Any

from structlog.testing import capture_logs

from comfyrelay.comfyui.runs.history import failure_in, log_unknown, outputs_in
from comfyrelay.comfyui.runs.unknown_kinds import UnknownKinds

ENTRY: dict[str, Any] = {
    "outputs": {"1": {"hologram": [{"depth": 3}]}, "2": {"images": [{"filename": "a.png"}], "animated": [True]}},
    "status": {"status_str": "archived", "messages": [["execution_start", {}]]},
}


def test_unknown_state_and_output_are_logged_once() -> None:
    kinds = UnknownKinds("http://127.0.0.1:1")
    with capture_logs() as logs:
        for _ in range(2):
            log_unknown(ENTRY, kinds)
            log_unknown({"outputs": {}, "status": {"status_str": "success"}}, kinds)
    found = [(log["event"], log["kind"]) for log in logs]
    assert found == [("comfyui.unknown_status", "archived"), ("comfyui.unknown_output", "hologram")]


def test_unknown_state_is_not_a_failure() -> None:
    assert failure_in(ENTRY) is None


def test_outputs_of_an_unknown_shape_are_ignored() -> None:
    assert outputs_in({"outputs": ["a.png"]}) == outputs_in({}) == {}
