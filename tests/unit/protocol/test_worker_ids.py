"""Worker ids are part of console URLs, so not every text is accepted."""

import re
from pathlib import Path

import pytest

from comfyrelay.domain.worker_ids import WORKER_ACTIONS, worker_id_problem
from comfyrelay.errors import InvalidInput
from comfyrelay.protocol.base import checked
from comfyrelay.protocol.worker import RegisterRequest
from comfyrelay.server.admin import workers


@pytest.mark.parametrize(
    "worker_id",
    [".", "..", "...", ". .", " ", "/", "a//b", "a/", "/a", "a/../b", "a/.", "a\x7f", "a\u200bb", "rack/logs"],
)
def test_worker_id_that_no_url_can_contain_is_refused(worker_id: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked(RegisterRequest, worker_id=worker_id, fleet_slug="home")
    assert "A worker id must not" in caught.value.errors["worker_id"]


@pytest.mark.parametrize("worker_id", ["gpu-1", "rack/1", "a.b", ".hidden", "gpu 1", "größe", "logs", "i-0abc..x"])
def test_other_worker_id_is_accepted(worker_id: str) -> None:
    assert checked(RegisterRequest, worker_id=worker_id, fleet_slug="home").worker_id == worker_id
    assert worker_id_problem(worker_id) is None


def test_all_actions_on_a_worker_are_known() -> None:
    source = Path(workers.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r"\{worker_id:path\}/([a-z-]+)", source)) == WORKER_ACTIONS
