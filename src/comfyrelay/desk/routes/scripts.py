"""The script that is configured, and what would be run, to be seen before it is."""

import asyncio

from fastapi import APIRouter, Request

from comfyrelay.desk.scripts.command import ScriptJob, ScriptSettings, command_of, shown, templates
from comfyrelay.desk.scripts.workflow import SLUG
from comfyrelay.errors import NotFound
from comfyrelay.server.base.answers import Answer, Body
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.problems import may_answer

__all__ = ["router"]

router = APIRouter(prefix="/api/desk/script", tags=["desk"])


class ScriptBody(Body):
    """What the configuration says. Of `environment` only the names: values may be secrets."""

    workflow_slug: str
    python: str
    script: str | None
    working_folder: str
    input_folder: str
    template_folder: str
    output_folder: str | None
    output_extension: str
    profiles: list[str]
    default_profile: str
    templates: list[str]
    arguments: list[str]
    extra_options: dict[str, str]
    environment: list[str]


class CommandBody(Body):
    """`argv` is what is run; `command` is the same as one would type it, to be read."""

    argv: list[str]
    command: str


@router.get("", responses=may_answer(401, 404))
async def script(request: Request, _user: CurrentUser) -> Answer[ScriptBody]:
    """What is configured in `[desk.script]`."""
    settings = _settings(request)
    return Answer(
        data=ScriptBody(
            workflow_slug=SLUG,
            python=str(settings.python),
            script=str(settings.script) if settings.script else None,
            working_folder=str(settings.working_folder),
            input_folder=str(settings.input_folder),
            template_folder=str(settings.template_folder),
            output_folder=str(settings.output_folder) if settings.output_folder else None,
            output_extension=settings.output_extension,
            profiles=settings.profiles,
            default_profile=settings.profile,
            templates=await asyncio.to_thread(templates, settings),
            arguments=settings.arguments,
            extra_options=settings.extra_options,
            environment=sorted(settings.environment),
        )
    )


@router.post("/preview", responses=may_answer(401, 403, 404, 422))
async def preview(body: ScriptJob, request: Request, _user: CurrentUser) -> Answer[CommandBody]:
    """The command that a job of these parameters would run. Nothing is run."""
    argv = await asyncio.to_thread(command_of, _settings(request), body)
    return Answer(data=CommandBody(argv=argv, command=shown(argv)))


def _settings(request: Request) -> ScriptSettings:
    found: ScriptSettings | None = request.app.state.desk.script
    if found is None:
        raise NotFound("No script is configured: add [desk.script] to comfyrelay.toml.")
    return found
