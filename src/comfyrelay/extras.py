"""Optional dependencies: the modules of each extra, and the command that installs the extra.

The base install contains the client, the workflow pool, `comfyui` and the worker.
"""

from collections.abc import Mapping
from importlib.util import find_spec

from comfyrelay.errors import ConfigurationError

_MEDIA = frozenset({"PIL", "av"})
_SERVER = frozenset(
    {
        "aiosqlite",
        "alembic",
        "asyncpg",
        "blake3",
        "fastapi",
        "fastapi_offline",
        "pwdlib",
        "python_multipart",
        "sqlalchemy",
        "standardwebhooks",
        "uuid_utils",
        "uvicorn",
    }
)
_SIMULATOR = frozenset({"PIL", "aiohttp", "av", "blake3"})

# Extra → modules that it installs.
MODULES: Mapping[str, frozenset[str]] = {
    "alerts": frozenset({"apprise"}),
    "aws": frozenset({"asn1crypto", "boto3", "cryptography"}),
    "desk": _SERVER | _MEDIA | _SIMULATOR | {"apprise", "segno", "tomlkit"},
    "editor": _SERVER | {"comfyui_frontend_package", "comfyui_subgraph_blueprints"},
    "gateway": frozenset({"aiohttp"}),
    "kubernetes": frozenset({"google.protobuf", "grpc"}),
    "media": _MEDIA,
    "s3": frozenset({"boto3"}),
    "server": _SERVER,
    "simulator": _SIMULATOR,
    # `fastapi` also installs the API of OpenTelemetry, but not its SDK.
    "traces": frozenset({"opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"}),
}


def is_installed(extra: str) -> bool:
    """Check for the modules of an extra without importing them, because imports are slow."""
    return all(map(_is_found, MODULES[extra]))


def _is_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # The package that contains this module is missing.
        return False


def install_line(*extras: str) -> str:
    return f"pip install 'comfyrelay[{','.join(extras)}]'"


def require(*extras: str) -> None:
    """Raise `ConfigurationError` with the install command if an extra is missing."""
    if not all(is_installed(extra) for extra in extras):
        raise ConfigurationError(missing_text(*extras))


def missing_text(*extras: str) -> str:
    package = f"'comfyrelay[{','.join(extras)}]'"
    runners = f"In `uvx`, add --from {package}; in `pipx run`, add --spec {package}."
    return f"This command needs an optional dependency. Install it: {install_line(*extras)}\n{runners}"
