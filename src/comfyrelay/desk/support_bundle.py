"""The support bundle of `comfyrelay doctor --bundle`: the information for a bug report, without secrets or customers'
data.

Nothing is included by accident: each entry is built from named fields. Texts that may repeat a prompt, a file name or
an e-mail address (errors of jobs, lines of ComfyUI) are added only if the owner asks for them.
"""

import json
import os
import platform
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from comfyrelay import __version__
from comfyrelay.clock import utc_now
from comfyrelay.configuration import ArgumentsOnly, effective_settings
from comfyrelay.desk.password import PASSWORD_FILE
from comfyrelay.desk.settings import load_desk_settings
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.domain.records.jobs import DispatchFilter
from comfyrelay.errors import ComfyRelayError, ConfigurationError
from comfyrelay.protocol.desk import CheckResult
from comfyrelay.services.engine import Engine
from comfyrelay.services.upgrade_plan import plan_upgrade
from comfyrelay.settings import Settings, load_settings
from comfyrelay.system.owner_secret import SECRET_FILE
from comfyrelay.worker.console import HIDDEN, without_secrets
from comfyrelay.worker.settings import WorkerSettings, load_worker_settings

MAX_FAILURES = 50
MAX_LOG_LINES = 200
# Shorter values, such as `1` or `true`, are not secrets, and replacing them would damage the report.
MIN_SECRET_LENGTH = 6
_SECRET_NAME = re.compile(
    r"secret|token|password|passwd|credential|(?:api|access|private)_?key|_key$|_url$|_urls$", re.I
)
_EMAIL = re.compile(r"""[^\s"'<>@:]+@[\w-]+(?:\.[\w-]+)+""")
README = """A support bundle of ComfyRelay.

versions.json  versions of ComfyRelay, Python, the system and the installed packages
checks.json    the results of `comfyrelay doctor`
settings.json  settings and their sources; secrets are hidden
queue.json     schemas, jobs by state, and the last failed jobs
logs/          last lines of managed ComfyUI processes, only with --with-texts

It contains no secrets. Host names, paths and the names of workflows and workers are in it. Error texts are only with
--with-texts: they may repeat prompts, file names and e-mail addresses. Read it before you send it.
"""


async def write_bundle(path: Path, checks: Sequence[CheckResult], *, with_texts: bool) -> None:
    """Write a new zip. Raises `ConfigurationError` if the file exists or cannot be written."""
    found: dict[str, Any] = {"versions": _versions(), "checks": [check.model_dump(mode="json") for check in checks]}
    loaded = _load_settings()
    found["settings"] = {name: _settings(given) for name, given in loaded.items()}
    logs: dict[str, str] = {}
    if isinstance(settings := loaded.get("server"), Settings):
        found["queue"] = await _queue(settings, with_texts=with_texts)
        if with_texts:
            logs = dict(_logs(settings.data_dir))
    hide = _Hide([*loaded.values()], with_texts=with_texts)
    texts = {f"{name}.json": hide(json.dumps(_clean(value), indent=2, default=str)) for name, value in found.items()}
    texts |= {f"logs/{name}": hide(_clean(text)) for name, text in logs.items()}
    try:
        with path.open("xb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in {"README.txt": README, **texts}.items():
                archive.writestr(name, text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None


def _versions() -> dict[str, Any]:
    installed = {found.metadata["Name"]: found.version for found in distributions()}
    return {
        "comfyrelay": __version__,
        "python": platform.python_version(),
        "system": f"{platform.machine()} {platform.version()}",
        "created_at": utc_now().isoformat(timespec="seconds"),
        "packages": dict(sorted(installed.items())),
    }


def _load_settings() -> dict[str, ArgumentsOnly]:
    """Load the settings of each kind of process. The checks report invalid settings."""
    found: dict[str, ArgumentsOnly] = {}
    for name, load in (("server", load_settings), ("desk", load_desk_settings), ("worker", load_worker_settings)):
        try:
            found[name] = load()
        except ConfigurationError:
            continue
    return found


def _settings(settings: ArgumentsOnly) -> list[dict[str, Any]]:
    return [
        {"name": found.name, "value": HIDDEN if found.is_secret else found.value, "source": found.source}
        for found in effective_settings(settings)
        if found.source != "default"
    ]


async def _queue(settings: Settings, *, with_texts: bool) -> dict[str, Any]:
    """Read the databases, which are not created or upgraded."""
    if not all(map(_may_exist, (settings.central_url, *settings.shard_urls.values()))):
        return {"problem": "There are no databases yet."}
    try:
        async with Engine(settings) as engine:
            plan = await plan_upgrade(settings.data_dir, engine.databases)
            about = {
                "databases": {
                    name: {"revision": at.revision, "problem": at.problem} for name, at in plan.databases.items()
                },
                "processes": [found._asdict() for found in plan.processes],
                "workers": [found._asdict() for found in plan.workers],
            }
            if any(at.revision != at.newest or at.problem for at in plan.databases.values()):
                return about
            return {**about, "jobs": await _jobs(engine), "failures": await _failures(engine, with_texts=with_texts)}
    except ComfyRelayError as error:
        return {"problem": error.detail}


def _may_exist(url: str) -> bool:
    return not url.startswith("sqlite") or Path(urlsplit(url).path).is_file()


async def _jobs(engine: Engine) -> dict[str, Any]:
    metrics = await engine.operations.metrics.read()
    waiting, leased = Counter[str](), Counter[str]()
    for queue in metrics.queues:
        waiting[queue.stage] += queue.depth
    for lease in metrics.leased:
        leased[lease.stage] += lease.leases
    return {"waiting": waiting, "leased": leased, "outbox_seconds": dict(metrics.outbox_seconds)}


async def _failures(engine: Engine, *, with_texts: bool) -> list[dict[str, Any]]:
    wanted = DispatchFilter(status=DispatchStatus.FAILED)
    page = await engine.operations.inspection.dispatches(wanted, limit=MAX_FAILURES)
    return [
        {
            "dispatch_id": view.dispatch.id,
            "workflow": view.dispatch.workflow_hash[:12],
            "provider": view.dispatch.provider,
            "stage": view.dispatch.stage,
            "attempts": view.dispatch.attempts,
            "worker_id": view.last_worker_id,
            "finished_at": _text(view.dispatch.finished_at),
            "duration_seconds": view.dispatch.duration_seconds,
            "error": view.dispatch.last_error if with_texts else HIDDEN,
        }
        for view in page.items
    ]


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")


def _logs(data_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield the last lines of each managed ComfyUI."""
    for number, path in enumerate(sorted((data_dir / "worker").rglob("comfyui.log")), 1):
        lines = path.read_text("utf-8", errors="replace").splitlines()
        yield f"comfyui-{number}.log", "\n".join(lines[-MAX_LOG_LINES:])


def _clean(value: Any) -> Any:
    """Hide logins and queries in URLs, tokens, and fields that are named like secrets."""
    return without_secrets(None, "", {"found": value})["found"]


class _Hide:
    """Replaces every secret that this process knows in any text."""

    def __init__(self, settings: Sequence[ArgumentsOnly], *, with_texts: bool) -> None:
        known = {*_secret_settings(settings), *_secret_variables(os.environ), *_secret_files(settings)}
        forms = {form for secret in known for form in (secret, quote(secret, safe=""), unquote(secret))}
        escaped = {json.dumps(form)[1:-1] for form in forms}
        long = (form for form in forms | escaped if len(form) >= MIN_SECRET_LENGTH)
        self._secrets = sorted(long, key=len, reverse=True)
        self._with_texts = with_texts

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text if self._with_texts else _EMAIL.sub(HIDDEN, text)


def _secret_settings(settings: Sequence[ArgumentsOnly]) -> Iterator[str]:
    for given in settings:
        for name, field in type(given).model_fields.items():
            if not field.repr:
                yield from _parts(given.model_dump(mode="json")[name])


def _secret_variables(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        if _SECRET_NAME.search(name):
            yield from _parts(value)


def _secret_files(settings: Sequence[ArgumentsOnly]) -> Iterator[str]:
    """Yield the content of the files in which ComfyRelay stores secrets."""
    for given in settings:
        if not isinstance(given, Settings | WorkerSettings):
            continue
        for path in _paths(given.data_dir):
            try:
                text = path.read_text("utf-8", errors="replace").strip()
            except OSError:
                continue
            try:
                yield from _parts(json.loads(text))
            except ValueError:
                yield text


def _paths(data_dir: Path) -> Iterator[Path]:
    yield from (data_dir / name for name in ("secrets.json", SECRET_FILE, PASSWORD_FILE))
    yield from (folder / name for folder in (data_dir, data_dir / "worker") for name in ("token.json", "key.json"))


def _parts(value: Any) -> Iterator[str]:
    """Yield all texts in a value, and the passwords and queries of texts that are URLs."""
    match value:
        case str():
            yield value
            if "://" in value:
                parts = urlsplit(value)
                yield from (part for part in (parts.password, parts.query) if part)
        case Mapping():
            for item in value.values():
                yield from _parts(item)
        case list() | tuple():
            for item in value:
                yield from _parts(item)
