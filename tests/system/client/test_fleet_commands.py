"""`comfyrelay fleet …` works from another machine through the admin API."""

import json
from typing import Any

import pytest

from tests.support import commands
from tests.support.client_site import Site
from tests.system.autoscaling.test_scaling_commands import create_and_change


@pytest.fixture
async def env(site: Site, tmp_path: Any) -> dict[str, str]:
    """Return the environment of a machine without the databases of the server."""
    admin = await site.api.user("root@example.com", is_admin=True)
    token = admin.headers["Authorization"].removeprefix("Bearer ")
    return {**site.env, "COMFYRELAY_TOKEN": token, "COMFYRELAY_DATA_DIR": str(tmp_path / "elsewhere")}


async def test_fleet_is_created_changed_and_inspected(env: dict[str, str]) -> None:
    await create_and_change(env)
    [status] = json.loads((await commands.run("fleet", "status", "--json", env=env)).out)
    assert (status["slug"], status["provider"], status["max_machines"]) == ("attic", "local", 2)
    shown = await commands.run("fleet", "status", env=env)
    assert "production/attic" in shown.out
    assert (await commands.run("fleet", "pause", "attic", env=env)).out == "attic (production): paused\n"
    assert "(paused)" in (await commands.run("fleet", "status", env=env)).out
    assert (await commands.run("fleet", "resume", "--all", env=env)).out == "attic (production): resumed\n"
    assert (await commands.run("fleet", "reset", "attic", env=env)).out == "attic (production): reset\n"
    assert "No decisions yet." in (await commands.run("fleet", "decisions", env=env)).out
    assert "No machine has ended yet." in (await commands.run("fleet", "machines", env=env)).out


async def test_token_of_a_user_is_refused(site: Site) -> None:
    refused = await site.command("fleet", "status")
    assert refused.code == 2
    assert "administrator" in refused.err
    anonymous = await site.command("fleet", "status", COMFYRELAY_TOKEN="")
    assert anonymous.code == 2
    advice = "needs an administrator's token: set COMFYRELAY_TOKEN (`comfyrelay admin create` prints one)."
    assert anonymous.err == f"Error: {site.url} {advice}\n"
