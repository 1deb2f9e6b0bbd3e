"""The command that makes a machine a worker of a fleet."""

import shlex

from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import Conflict
from comfyrelay.protocol.admin import fleets as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.parameters import SlugInPath
from comfyrelay.server.http.problems import error_responses

router = admin_router("/fleets")
COMFYUI = "http://127.0.0.1:8188"
# In a clone, because there is no release yet.
INSTALL = "pip install ."


@router.get("/{stage}/{slug}/join-command", responses=error_responses(404, 409, 422))
async def join_command(stage: Stage, slug: SlugInPath, context: ContextOf) -> Answer[wire.JoinCommand]:
    """The command that starts a worker of this fleet next to the ComfyUI of its machine. It contains the secret of the
    stage."""
    fleet = (await context.engine.workers.views.get(stage, slug)).fleet
    secrets = context.secrets.fleet.get(stage)
    if not secrets:
        raise Conflict(f"This server has no secret for the stage {stage}. Set COMFYRELAY_FLEET_SECRETS.")
    variables = {
        "API_BASE_URL": context.settings.base_url,
        "FLEET_SECRET": secrets[0],
        "FLEET_STAGE": str(stage),
        "FLEET_SLUG": fleet.slug,
        "COMFYUI_BASE_URL": COMFYUI,
    }
    command = " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), "comfyrelay worker"])
    set_first = [f"$env:{name}={_for_powershell(value)}" for name, value in variables.items()]
    powershell = "; ".join([*set_first, "comfyrelay worker"])
    return Answer(data=wire.JoinCommand(install=INSTALL, command=command, powershell=powershell, variables=variables))


def _for_powershell(value: str) -> str:
    """Quote a literal: between single quotes nothing is replaced, and two quotes are one. Curly quotes count, too."""
    quotes = str.maketrans({each: each * 2 for each in "'\u2018\u2019\u201a\u201b"})
    return f"'{value.translate(quotes)}'"
