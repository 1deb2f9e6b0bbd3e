"""Adapt the settings to a single user, and create the data of a new desk: its user, fleet, examples and presets."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from comfyrelay.desk.addresses import LOOPBACK
from comfyrelay.desk.examples import EXAMPLES
from comfyrelay.desk.password import Password
from comfyrelay.desk.scripts.command import ScriptSettings
from comfyrelay.desk.scripts.workflow import update_script_workflow
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import Conflict
from comfyrelay.http_client import is_loopback
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.system.owner_secret import SECRET_FILE

FLEET = "desk"
LOCAL_EMAIL = "desk@localhost"
# A desk has no other tenants to protect.
NO_LIMIT = 1_000_000
# Values by role, and for scripts by key. Video models take 4 n + 1 frames. Sizes are omitted, because they would
# distort images of another shape.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "look-dev": {"steps": 8, "length": 33, "megapixels": 0.25, "profile": "look-dev"},
    "medium": {"steps": 16, "length": 49, "megapixels": 0.5, "profile": "medium"},
    "production": {"steps": 30, "length": 81, "megapixels": 1.0, "profile": "production"},
}


def single_user_settings(settings: Settings) -> Settings:
    given = settings.model_fields_set
    is_local = is_loopback(settings.host)
    wanted = {
        "max_active_jobs_per_user": NO_LIMIT,
        "default_fleet": FLEET,
        # Other machines could guess secrets.
        "rate_limit_per_minute": NO_LIMIT if is_local else settings.rate_limit_per_minute,
        # The desk's own worker always connects over loopback.
        "public_url": settings.public_url if is_local else f"http://{LOOPBACK}:{settings.port}",
        # A batch may have ten thousand items, each with a prompt.
        "max_large_body_bytes": 64 * 1024**2,
        "max_body_values": 2 * NO_LIMIT,
        "max_batch_nodes": 1000 * NO_LIMIT,
        "max_own_workflows": NO_LIMIT,
        "max_graph_bytes": 64 * 1024**2,
        "max_workflow_bytes": None,
        "max_stored_bytes": None,
        "max_stored_files": None,
        # The user who writes the graphs owns the machine.
        "own_workflows": "everyone",
        "own_workflow_tokens_per_second": 0.0,
        "graph_policy": "off",
        # No other worker could run the job in the meantime.
        "block_cooldown_seconds": 5.0,
    }
    changes = {name: value for name, value in wanted.items() if name not in given or name == "default_fleet"}
    return settings.model_copy(update=changes)


async def prepare_databases(engine: Engine, script: ScriptSettings | None) -> tuple[User, bool]:
    """Bring the databases up to date. Returns the user, and whether the desk is new."""
    await engine.databases.upgrade()
    user, is_new = await create_initial_data(engine, engine.settings)
    if not (engine.settings.data_dir / SECRET_FILE).exists():
        # The owner has deleted the secret, because others may know it. They may have created sessions and tokens with
        # it.
        await engine.accounts.sign_in.revoke_all(user)
    await Password(engine.settings.data_dir).end_outdated_sessions(engine.accounts.sign_in, user)
    await update_script_workflow(engine, user, script)
    return user, is_new


async def create_initial_data(engine: Engine, settings: Settings) -> tuple[User, bool]:
    """Return the user, and whether the desk is new. An interrupted first start is completed."""
    user = await engine.accounts.tenancy.find_user(LOCAL_EMAIL)
    # After the first start, examples and presets that the user has removed are not created again.
    marker = settings.data_dir / ".furnished"
    if user is not None and marker.exists():
        return user, False
    with suppress(Conflict):
        await engine.workers.fleets.create(slug=FLEET, stage=Stage(settings.stage), name="The desk")
    for example in EXAMPLES:
        with suppress(Conflict):
            await engine.catalogue.workflows.create(**asdict(example))
        with suppress(Conflict):
            await engine.catalogue.effects.create(
                slug=example.slug, workflow_slug=example.slug, name=example.name, credits_cost=0
            )
    user = user or await engine.accounts.tenancy.create_user(email=LOCAL_EMAIL, name="You", is_admin=True)
    for name, values in reversed([*PRESETS.items()]):
        with suppress(Conflict):
            await engine.catalogue.presets.create(user.tenant_id, name=name, values=values)
    marker.touch()
    return user, True
