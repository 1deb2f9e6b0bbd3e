"""Commands start fast because they import only what they need."""

import subprocess
import sys

import pytest

from comfyrelay.protocol import base, desk, jobs, user, worker
from comfyrelay.protocol.admin import autoscaling, catalogue, dispatches, fleets, operations, tenants, workers


@pytest.mark.parametrize(
    ("module", "not_needed"),
    [
        ("comfyrelay.cli.main", {"pydantic", "httpx", "fastapi", "sqlalchemy"}),
        ("comfyrelay.client", {"fastapi", "sqlalchemy", "aiohttp"}),
        ("comfyrelay.desk.desk", {"alembic", "av", "aiohttp", "apprise", "boto3"}),
    ],
)
def test_optional_modules_are_not_imported_at_startup(module: str, not_needed: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not_needed & set(done.stdout.split()) == set()


MODULES = (
    *(autoscaling, catalogue, dispatches, fleets, operations, tenants, workers),
    *(base, desk, jobs, user, worker),
)


def test_protocol_needs_no_web_framework() -> None:
    names = ", ".join(module.__name__ for module in MODULES)
    program = f"import sys, {names}, comfyrelay.client, comfyrelay.worker.control; print('fastapi' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"
