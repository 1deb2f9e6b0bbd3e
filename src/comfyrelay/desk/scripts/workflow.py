"""The workflow of the user's script. The script's parameters are properties, so that its jobs are queued, batched and
retried like graphs.

Its graph only contains parameters. The configuration of this machine decides which program runs with them: no request
or lease contains a command line.
"""

import shlex
import time
from collections.abc import Mapping
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.desk.scripts.command import ScriptSettings, check_job, templates
from comfyrelay.desk.scripts.frozen_inputs import FrozenInputs
from comfyrelay.domain.queue.states import WorkflowKind
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import ConfigurationError, InvalidInput, NotFound
from comfyrelay.media_types import guess_media_type
from comfyrelay.protocol.base import checked
from comfyrelay.protocol.desk import MAX_ATTEMPTS, ScriptJob
from comfyrelay.services.engine import Engine

SLUG = "script"
CLASS_TYPE = "ComfyRelayScript"
NODE_ID = "script"
# A property may have this many choices.
MAX_CHOICES = 1000
# All items of a batch use the same folder, so it is read only once.
CHECK_VALID_SECONDS = 5.0

_KEYS = ("positive", "negative", "input_subdir", "template", "profile", "tries", "randomize_seed", "extra_args")
# The value with the name of the frozen inputs, which only the desk sets.
SNAPSHOT = "snapshot"
_PLACEHOLDERS = {key: f"{{{{SCRIPT_{key.upper()}}}}}" for key in (*_KEYS, SNAPSHOT)}
GRAPH: Graph = {
    NODE_ID: {"class_type": CLASS_TYPE, "inputs": dict(_PLACEHOLDERS), "_meta": {"title": "Script"}},
}


def is_script(graph: Graph) -> bool:
    return [node["class_type"] for node in graph.values()] == [CLASS_TYPE]


def values_in(graph: Graph) -> dict[str, Any]:
    """Return the parameters in a job's graph. A remaining placeholder has no value."""
    [node] = graph.values()
    return {key: value for key, value in node["inputs"].items() if value != _PLACEHOLDERS.get(key)}


def job_of(values: Mapping[str, Any]) -> ScriptJob:
    """Parse a job's values. Raises `InvalidInput`."""
    try:
        extra = shlex.split(str(values.get("extra_args") or ""))
    except ValueError as error:
        raise InvalidInput(errors={"extra_args": f"The arguments cannot be parsed: {error}."}) from None
    tries = values.get("tries")
    if isinstance(tries, float) and not tries.is_integer():
        raise InvalidInput(errors={"tries": "This must be a whole number."})
    return checked(
        ScriptJob,
        template=str(values.get("template") or ""),
        input_subdir=str(values.get("input_subdir") or ""),
        positive=str(values.get("positive") or ""),
        # An empty field is not set.
        negative=str(values["negative"]) if values.get("negative") else None,
        profile=str(values["profile"]) if values.get("profile") else None,
        tries=None if tries is None else int(tries),
        randomize_seed=bool(values.get("randomize_seed")),
        extra_args=tuple(extra),
    )


def properties_of(settings: ScriptSettings) -> list[dict[str, Any]]:
    found = templates(settings)[:MAX_CHOICES]
    template: dict[str, Any] = {"type": "choice", "choices": found, "default_value": found[0]} if found else {}
    details: dict[str, dict[str, Any]] = {
        "template": {"required": True, **template},
        "profile": {"type": "choice", "choices": settings.profiles, "default_value": settings.profile},
        "tries": {"type": "number", "minimum": 1, "maximum": MAX_ATTEMPTS},
        "randomize_seed": {"type": "boolean", "default_value": False},
        SNAPSHOT: {"user_configurable": False},
    }
    return [
        {"key": key, "type": "text", "placeholder": placeholder, "user_configurable": True, **details.get(key, {})}
        for key, placeholder in _PLACEHOLDERS.items()
    ]


def snapshot_in(values: Mapping[str, Any]) -> str | None:
    """Return the name of the frozen inputs in a script job's values."""
    return values.get(_PLACEHOLDERS[SNAPSHOT])


def varied(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values of a script job without a fixed seed; `None` for any other job."""
    if _PLACEHOLDERS["randomize_seed"] not in values:
        return None
    words, kept = iter(shlex.split(str(values.get(_PLACEHOLDERS["extra_args"]) or ""))), []
    for word in words:
        if word == "--seed":
            next(words, None)
        elif not word.startswith("--seed="):
            kept.append(word)
    return {**values, _PLACEHOLDERS["randomize_seed"]: True, _PLACEHOLDERS["extra_args"]: shlex.join(kept)}


class ScriptCheck:
    """Validates a submission against this machine's folders, and freezes its inputs."""

    def __init__(self, settings: ScriptSettings, snapshots: FrozenInputs) -> None:
        self._settings = settings
        self._snapshots = snapshots
        self._checked: dict[tuple[str, str], float] = {}

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        job = job_of(values)
        paths = (job.template, job.input_subdir)
        now = time.monotonic()
        is_checked = now - self._checked.get(paths, float("-inf")) < CHECK_VALID_SECONDS
        check_job(self._settings, job, has_known_paths=is_checked)
        if not is_checked:
            self._checked = {paths: now}
        return {SNAPSHOT: self._snapshots.take(job)}


async def update_script_workflow(engine: Engine, user: User, settings: ScriptSettings | None) -> None:
    """Create, update or disable the workflow of the configured script."""
    try:
        known = (await engine.catalogue.workflows.get(SLUG)).workflow
    except NotFound:
        known = None
    is_other = known is not None and known.kind != WorkflowKind.SCRIPT
    if settings is None:
        if known is not None and not is_other:
            await engine.catalogue.workflows.change(SLUG, {"is_active": False})
        return
    if is_other:
        raise ConfigurationError(
            f"One of your workflows is named {SLUG!r}, which [desk.script] needs. Start the desk without [desk.script] "
            "and remove the workflow."
        )
    name = settings.script.name if settings.script is not None else "comfyrelay batch-i2v"
    fields: dict[str, Any] = {
        "name": f"Script: {name}",
        "graph": GRAPH,
        "properties": properties_of(settings),
        "output_node_id": NODE_ID,
        "output_extension": settings.output_extension,
        "output_mime_type": guess_media_type(f"x.{settings.output_extension}") or "video/mp4",
    }
    if known is None:
        await engine.catalogue.workflows.create(slug=SLUG, tenant_id=user.tenant_id, kind=WorkflowKind.SCRIPT, **fields)
    else:
        await engine.catalogue.workflows.change(SLUG, {**fields, "is_active": True})
