"""The secrets of a server: configured, or generated at the first start and stored in the data folder."""

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any

from comfyrelay.errors import ConfigurationError
from comfyrelay.http_client import is_loopback
from comfyrelay.settings import Settings
from comfyrelay.system.atomic import remove_parts, write_new
from comfyrelay.system.permissions import FOLDER_MODE

STAGES = ("production", "staging")
MIN_SECRET_LENGTH = 16


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """The fleet secrets by stage, and the signing secrets. `new_file` contains the secrets if they were just
    generated."""

    fleet: Mapping[str, Sequence[str]]
    signing: Sequence[str]
    new_file: Path | None = None

    @property
    def server_ids(self) -> Sequence[str]:
        """The ids by which other servers know this server: the first is current, the others belong to earlier
        secrets."""
        return [sha256(f"comfyrelay server {secret}".encode()).hexdigest()[:16] for secret in self.signing]

    def accepts(self, stage: str, secret: str) -> bool:
        """Whether workers of a stage may register with this secret."""
        given = secret.encode()
        # Compare all of them: the time must not reveal which one matched.
        return True in [compare_digest(given, valid.encode()) for valid in self.fleet.get(stage, ())]


def check_secrets(settings: Settings, *, is_only_server: bool = False) -> None:
    """Raise `ConfigurationError` for weak secrets. A server that listens on a public address requires configured
    secrets, unless it is the only server."""
    _check_lengths(_by_stage(settings), "COMFYRELAY_FLEET_SECRETS")
    _check_lengths({"all": settings.signing_secrets}, "COMFYRELAY_SIGNING_SECRETS")
    if settings.payment_webhook_secret is not None:
        _check_lengths({"all": [settings.payment_webhook_secret]}, "COMFYRELAY_PAYMENT_WEBHOOK_SECRET")
    if settings.metrics_token is not None:
        _check_lengths({"all": [settings.metrics_token]}, "COMFYRELAY_METRICS_TOKEN")
    missing = [name for name in ("fleet_secrets", "signing_secrets") if not getattr(settings, name)]
    if missing and not is_only_server and not is_loopback(settings.host):
        raise ConfigurationError(
            f"The server listens on {settings.host}, which other machines can reach, and has only generated secrets. "
            f"Set {' and '.join(f'COMFYRELAY_{name.upper()}' for name in missing)}, or listen on 127.0.0.1."
        )


def load_secrets(settings: Settings, *, is_only_server: bool = False) -> Secrets:
    """Return the configured secrets. If some are not configured, read them from the data folder, or generate them
    there. Call this after all other checks of the start, so that a refused start changes nothing."""
    check_secrets(settings, is_only_server=is_only_server)
    if settings.fleet_secrets and settings.signing_secrets:
        return Secrets(fleet=_by_stage(settings), signing=settings.signing_secrets)
    path = settings.data_dir / "secrets.json"
    is_new = _generate(path)
    stored = _read(path)
    _check_lengths(stored["fleet_secrets"], f"fleet_secrets in {path}")
    _check_lengths({"all": stored["signing_secrets"]}, f"signing_secrets in {path}")
    return Secrets(
        fleet=_by_stage(settings) or stored["fleet_secrets"],
        signing=settings.signing_secrets or stored["signing_secrets"],
        new_file=path if is_new else None,
    )


def _check_lengths(by_stage: Mapping[str, Sequence[str]], source: str) -> None:
    if any(len(secret.strip()) < MIN_SECRET_LENGTH for secrets_ in by_stage.values() for secret in secrets_):
        raise ConfigurationError(
            f"A secret in {source} is shorter than {MIN_SECRET_LENGTH} characters and could be guessed. Generate one "
            'with: python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
        )


def _by_stage(settings: Settings) -> dict[str, list[str]]:
    return {str(stage): allowed for stage, allowed in settings.fleet_secrets.items()}


def _generate(path: Path) -> bool:
    """Write new secrets unless the file exists. Returns whether it was written."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    generated = {
        "fleet_secrets": {stage: [secrets.token_urlsafe(32)] for stage in STAGES},
        "signing_secrets": [secrets.token_urlsafe(32)],
    }
    # If two servers start at the same time, one writes the file and both read it.
    is_new = write_new(path, json.dumps(generated, indent=2).encode(), mode=0o600)
    # A killed server may have left a temporary file. A server that is writing one now will read this file instead.
    with suppress(OSError):
        remove_parts(path.parent)
    return is_new


def _read(path: Path) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"The secrets in {path} cannot be read: {error}.") from None
    return stored
