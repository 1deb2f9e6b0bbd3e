"""Settings for a single user, and the data of a new desk: its user, fleet, examples and presets."""

from contextlib import suppress

from comfyrelay.desk.addresses import LOOPBACK
from comfyrelay.desk.examples import EXAMPLES
from comfyrelay.desk.starter_presets import PRESETS
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import Conflict
from comfyrelay.http_client import is_loopback
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings

FLEET = "desk"
LOCAL_EMAIL = "desk@localhost"
# A desk has no other tenants to protect.
NO_LIMIT = 1_000_000


def single_user_settings(settings: Settings) -> Settings:
    given = settings.model_fields_set
    is_alone = is_loopback(settings.host)
    wanted = {
        "max_active_jobs_per_user": NO_LIMIT,
        "default_fleet": FLEET,
        # other machines could guess secrets
        "requests_per_minute": NO_LIMIT if is_alone else settings.requests_per_minute,
        # the desk's own worker always connects over loopback
        "public_url": settings.public_url if is_alone else f"http://{LOOPBACK}:{settings.port}",
        # a batch of ten thousand items has a prompt in each
        "max_large_body_bytes": 64 * 1024**2,
        "max_body_values": 2 * NO_LIMIT,
        "max_batch_nodes": 1000 * NO_LIMIT,
        "max_own_workflows": NO_LIMIT,
        # the user who writes the graphs owns the machine
        "graph_policy": "off",
        # no other worker could run the job in the meantime
        "block_cooldown_seconds": 5.0,
    }
    changes = {name: value for name, value in wanted.items() if name not in given or name == "default_fleet"}
    return settings.model_copy(update=changes)


async def create_initial_data(engine: Engine, settings: Settings) -> tuple[User, bool]:
    """The user, and whether the desk is new. An interrupted first start is completed."""
    user = await engine.accounts.tenancy.find_user(LOCAL_EMAIL)
    # removed examples and presets stay removed
    marker = settings.data_dir / ".furnished"
    if user is not None and marker.exists():
        return user, False
    with suppress(Conflict):
        await engine.workers.fleets.create(slug=FLEET, stage=Stage(settings.stage), name="The desk")
    for each in EXAMPLES:
        with suppress(Conflict):
            await engine.catalogue.workflows.create(
                slug=each.slug,
                name=each.name,
                graph=each.graph,
                properties=each.properties,
                output_node_id=each.output_node_id,
                output_extension=each.output_extension,
                output_mime_type=each.output_mime_type,
            )
        with suppress(Conflict):
            await engine.catalogue.effects.create(
                slug=each.slug, workflow_slug=each.slug, name=each.name, credits_cost=0
            )
    user = user or await engine.accounts.tenancy.create_user(email=LOCAL_EMAIL, name="You", is_admin=True)
    for name, values in reversed([*PRESETS.items()]):
        with suppress(Conflict):
            await engine.catalogue.presets.create(user.tenant_id, name=name, values=values)
    marker.touch()
    return user, True
