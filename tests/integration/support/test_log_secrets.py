"""Secrets in log lines are found, even if another process logged them."""

import secrets
from collections.abc import Callable
from uuid import uuid4

import pytest
import structlog
import uuid_utils

from tests.support import log_secrets
from tests.support.api import FLEET_SECRET

log = structlog.get_logger(__name__)


@pytest.mark.parametrize(
    "secret",
    [
        secrets.token_urlsafe,
        secrets.token_hex,
        lambda: f"whsec_{secrets.token_hex(32)}",
        lambda: str(uuid_utils.uuid4()),
        lambda: FLEET_SECRET,
        lambda: "https://s3.test/a?X-Amz-Signature=0",
    ],
)
def test_logged_secret_is_found_with_its_event(secret: Callable[[], str]) -> None:
    log.info("sample.harmless", id=str(uuid4()))
    log.info("sample.leaked", of=f"Bearer {secret()}, or so")
    [line] = log_secrets.violations()
    assert "sample.leaked" in line
    assert log_secrets.violations() == []


def test_secret_of_another_process_is_found() -> None:
    log_secrets.add("of-another-process-0123456789abcdef")
    log_secrets.note(['{"event": "sample.leaked", "token": "of-another-process-0123456789abcdef"}'])
    assert len(log_secrets.violations()) == 1
