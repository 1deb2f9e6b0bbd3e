"""What is not in a base install, and the line that installs it.

A GPU host has the base: the client, the pool, `comfy` and the worker. Everything else is an extra of the package.
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
        "fastapi",
        "fastapi_offline",
        "pwdlib",
        "sqlalchemy",
        "standardwebhooks",
        "uuid_utils",
        "uvicorn",
    }
)
_SIMULATOR = frozenset({"PIL", "aiohttp", "av"})

# By extra, what it brings, as it is imported.
MODULES: Mapping[str, frozenset[str]] = {
    "aws": frozenset({"asn1crypto", "boto3", "cryptography"}),
    "desk": _SERVER | _MEDIA | _SIMULATOR | {"apprise"},
    "kubernetes": frozenset({"google", "grpc"}),
    "media": _MEDIA,
    "s3": frozenset({"boto3"}),
    "server": _SERVER,
    "simulator": _SIMULATOR,
}


def is_installed(extra: str) -> bool:
    """Looked for, not imported: that takes long."""
    return all(find_spec(each) is not None for each in MODULES[extra])


def install_line(*extras: str) -> str:
    return f"pip install 'comfyrelay[{','.join(extras)}]'"


def require(*extras: str) -> None:
    """`ConfigurationError` with the line that installs them, unless they are there."""
    if not all(is_installed(each) for each in extras):
        raise ConfigurationError(f"This needs more than the base install: {install_line(*extras)}")
