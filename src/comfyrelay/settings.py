"""Settings from the environment (`COMFYRELAY_…`) and `comfyrelay.toml`.

Neither the import nor the constructor of `Settings` reads anything. Only `load_settings` does.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from comfyrelay.errors import ConfigurationError
from comfyrelay.system.user_folders import data_folder

__all__ = [
    "ENV_PREFIX",
    "ArgumentsOnly",
    "EffectiveSetting",
    "GraphPolicyMode",
    "Settings",
    "Stage",
    "config_path",
    "effective_settings",
    "load",
    "load_settings",
    "load_table",
]

ENV_PREFIX = "COMFYRELAY_"
CONFIG_VARIABLE = f"{ENV_PREFIX}CONFIG"
CONFIG_NAME = "comfyrelay.toml"

# The longest lifetime that S3 allows for a signed URL.
LONGEST_URL_SECONDS = 7 * 24 * 3600.0

DATABASE_SCHEMES = ("sqlite:///", "postgresql://", "postgres://")

Stage = Literal["staging", "production"]
GraphPolicyMode = Literal["deny", "allow", "off"]


def _database_url(url: str) -> str:
    # the URL is not repeated in the message: it may contain a password
    if not url.startswith(DATABASE_SCHEMES):
        raise ValueError(f"a database URL must start with one of {', '.join(DATABASE_SCHEMES)}")
    return url


DatabaseUrl = Annotated[str, AfterValidator(_database_url)]


def _top_up_url(url: str) -> str:
    # shown to users as a link
    if not url.startswith(("https://", "http://", "mailto:")):
        raise ValueError("must be an https://, http:// or mailto: address")
    return url


TopUpUrl = Annotated[str, AfterValidator(_top_up_url)]


def split_commas(value: Any) -> Any:
    return [part for each in value.split(",") if (part := each.strip())] if isinstance(value, str) else value


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an address or network; use the form 10.0.0.7 or 10.0.0.0/24") from None


# `a, b` in the environment, a list in the file
CommaSeparated = Annotated[list[str], NoDecode, BeforeValidator(split_commas)]
Networks = Annotated[list[Annotated[str, AfterValidator(_network)]], NoDecode, BeforeValidator(split_commas)]
Count = Annotated[int, Field(gt=0)]
CountOrZero = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ArgumentsOnly(BaseSettings):
    """Settings that take arguments only. `load` passes those of the environment and the file."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """pydantic would merge the `shards` of two sources; one must replace the other."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


class Settings(ArgumentsOnly):
    """Settings of the control plane."""

    data_dir: Path = Field(default_factory=data_folder, description="folder for local data, readable only by its user")
    database_url: DatabaseUrl | None = Field(
        None, repr=False, description="URL of the central database; if not set, a file in the data folder"
    )
    shards: dict[str, DatabaseUrl] = Field(
        {},
        repr=False,
        description="JSON object: shard name → database URL; if empty, one file in the data folder",
    )
    storage_url: str | None = Field(
        None, description="URL of the object storage; if not set, a folder in the data folder"
    )
    stage: Stage = Field("production", description="stage of the jobs that this server accepts")

    host: str = Field("127.0.0.1", description="address that the server listens on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8420, description="port that the server listens on")
    public_url: str | None = Field(
        None, description="URL at which clients and workers reach the server; if not set, from host and port"
    )
    fleet_secrets: dict[Stage, list[str]] = Field(
        {}, repr=False, description="JSON object: stage → secrets that workers register with; if empty, generated"
    )
    signing_secrets: list[str] = Field(
        [],
        repr=False,
        description="JSON list: the first secret signs URLs of local files, all verify; if empty, generated",
    )
    payment_webhook_secret: str | None = Field(
        None, repr=False, description="secret that signs payment webhooks; if not set, the endpoint is disabled"
    )
    top_up_url: TopUpUrl | None = Field(
        None, description="https:, http: or mailto: address where users buy tokens, shown next to their balance"
    )
    allowed_origins: list[str] = Field(
        [], description="JSON list: origins whose pages may call the API and upload files"
    )
    allow_registration: bool = Field(True, description="whether anyone may create an account")
    session_days: Seconds = Field(30, description="days until a browser session expires")
    requests_per_minute: Count = Field(
        10, description="worker registrations and sign-in attempts per minute and address"
    )
    trusted_proxies: Networks = Field(
        [], description="comma-separated: addresses of proxies whose X-Forwarded-For header is trusted"
    )
    validate_asg_instance: bool = Field(
        False, description="whether workers named `i-…` must belong to an Auto Scaling group"
    )
    webhook_allow_private: bool = Field(False, description="whether webhooks may call private addresses")

    max_body_bytes: Count = Field(256 * 1024, description="maximum size of a JSON body")
    max_large_body_bytes: Count = Field(
        8 * 1024**2, description="maximum size of a body with a graph, a batch or a worker report"
    )
    max_body_values: Count = Field(250_000, description="maximum number of values in such a body")
    max_graph_nodes: Count = Field(2000, description="maximum number of nodes in a graph")
    max_own_workflows: Count = Field(1000, description="maximum number of private workflows per tenant")
    max_batch_nodes: Count = Field(
        1_000_000, description="maximum number of nodes in a batch: nodes of its graph × items"
    )
    body_seconds: Seconds = Field(60, description="seconds in which a request body must arrive")
    max_anonymous_body_bytes: Count = Field(16 * 1024, description="maximum size of a sign-in or registration body")
    anonymous_body_seconds: Seconds = Field(10, description="seconds in which such a body, or a payment, must arrive")
    header_seconds: Seconds = Field(15, description="seconds in which request headers must arrive")
    max_half_open_requests: Count = Field(500, description="maximum number of connections with incomplete headers")
    max_unfinished_bodies: Count = Field(500, description="maximum number of request bodies in transit")
    max_unfinished_bodies_per_address: Count = Field(
        100, description="maximum number of request bodies in transit per address"
    )
    max_connections: Count = Field(
        10_000, description="maximum number of connections; the open file limit may lower it"
    )

    max_upload_bytes: Count = Field(2 * 1024**3, description="maximum size of an uploaded file")
    max_output_bytes: Count = Field(2 * 1024**3, description="maximum size of an output file")
    max_output_files: Count = Field(1000, description="maximum number of output files that a desk keeps per run")
    output_validation: Literal["fail", "warn"] = Field(
        "fail", description="what happens to a job with a missing or broken output"
    )
    probe_processes: Count = Field(2, description="number of processes that inspect media files")
    probe_timeout_seconds: Seconds = Field(20, description="seconds after which the inspection of a file is stopped")
    probe_memory_bytes: Count = Field(2 * 1024**3, description="memory limit for the inspection of a file")
    probe_max_pixels: Count = Field(100_000_000, description="maximum number of pixels in an image or frame")
    probe_max_frames: Count = Field(10_000, description="maximum number of frames in an animated image")
    poster_seconds: Seconds = Field(5, description="seconds that a finished job waits for its poster and preview")
    retention_days: Annotated[float, Field(gt=0)] | None = Field(
        None, description="days after which videos are deleted"
    )
    unused_upload_hours: Seconds = Field(24, description="hours after which an unused upload is deleted")

    lease_ttl_seconds: Seconds = Field(900, description="seconds until a lease without a heartbeat expires")
    late_grace_seconds: SecondsOrZero | None = Field(
        None,
        description="seconds that an expired lease continues if no other worker can run its job; default: lease time",
    )
    max_attempts: Count = Field(3, description="attempts of a job before it fails")
    retry_backoff_seconds: SecondsOrZero = Field(5, description="first delay of a job whose graph cannot be built yet")
    burst_micros_per_hour: int | None = Field(
        None, ge=0, description="cost limit for all jobs sent to Comfy Cloud per hour, in millionths of a currency unit"
    )
    reaper_interval_seconds: Seconds = Field(5, description="seconds between searches for expired leases")
    recovery_interval_seconds: Seconds = Field(3, description="seconds between searches for jobs without a dispatch")

    max_fleet_workers: Count = Field(50, description="maximum number of workers per fleet")
    default_fleet: str | None = Field(None, description="fleet that runs every new workflow, including user workflows")
    fleet_commands_dir: Path | None = Field(
        None, description="folder with the programs that fleets may run on this host; no others are allowed"
    )
    autoscaling: bool = Field(
        True, description="whether this server launches and terminates machines of autoscaled fleets"
    )
    worker_stale_seconds: Seconds = Field(
        300, description="seconds without a request after which a worker counts as offline"
    )
    max_workers: Count | None = Field(None, description="maximum number of workers in all fleets")
    stale_worker_hours: Seconds = Field(2, description="hours without a request after which a fleet worker is removed")
    cloudwatch_metrics: bool = Field(False, description="whether fleet metrics are sent to CloudWatch every minute")
    cloudwatch_namespace: Annotated[str, Field(min_length=1, max_length=255)] = Field(
        "ComfyRelay", description="CloudWatch namespace of these metrics"
    )
    aws_identity_certificates: dict[str, Path] = Field(
        {},
        description="JSON object: region → PEM file with the AWS certificate for instance identity documents",
    )
    aws_identity_accounts: dict[Stage, list[str]] = Field(
        {}, description="JSON object: stage → AWS accounts whose instances may register with their identity document"
    )
    aws_identity_max_age_seconds: Seconds = Field(
        3600, description="seconds after its launch in which an instance may first register with its identity document"
    )
    max_failures_before_block: Count = Field(
        1, description="failures of a workflow after which it is blocked on a worker"
    )
    block_cooldown_seconds: SecondsOrZero = Field(60, description="duration of such a block in seconds")
    warm_lookahead_rows: CountOrZero = Field(
        32, description="queued jobs searched for one whose workflow is loaded; 0 disables the search"
    )
    warm_wait_seconds: SecondsOrZero = Field(
        120, description="maximum seconds that a job is skipped in favour of a loaded workflow"
    )

    max_active_jobs_per_user: Count = Field(5, description="maximum number of queued and running jobs per user")
    user_priority_min: int = Field(-10, description="lowest priority that a user may request")
    user_priority_max: int = Field(10, description="highest priority that a user may request")

    graph_policy: GraphPolicyMode = Field(
        "deny",
        description="nodes in tenant graphs: `deny` (all but dangerous ones), `allow` (only listed ones), `off` (all)",
    )
    graph_denied_nodes: CommaSeparated = Field([], description="comma-separated: more node classes that are denied")
    graph_allowed_nodes: CommaSeparated = Field([], description="comma-separated: node classes that are allowed")

    presigned_ttl_seconds: Count = Field(900, description="lifetime of a pre-signed URL in seconds")
    database_pool_size: Count = Field(10, description="connections per PostgreSQL database")
    database_wait_seconds: SecondsOrZero = Field(
        60, description="seconds that a starting server waits for the central database"
    )

    @field_validator("data_dir", "fleet_commands_dir")
    @classmethod
    def _absolute(cls, folder: Path | None) -> Path | None:
        return folder and folder.expanduser().absolute()

    @model_validator(mode="after")
    def _priorities_in_order(self) -> Self:
        if self.user_priority_min > self.user_priority_max:
            raise ValueError(
                f"{ENV_PREFIX}USER_PRIORITY_MIN ({self.user_priority_min}) must not be above "
                f"{ENV_PREFIX}USER_PRIORITY_MAX ({self.user_priority_max})"
            )
        return self

    @property
    def late_seconds(self) -> float:
        """How long an expired lease continues while no other worker can run its job."""
        return self.lease_ttl_seconds if self.late_grace_seconds is None else self.late_grace_seconds

    @property
    def lease_url_ttl_seconds(self) -> float:
        """Lifetime of the URLs of a lease. The first heartbeat in their second half renews them, so half of it must
        cover the lease and its grace."""
        lasting = max(self.presigned_ttl_seconds, 2 * (self.lease_ttl_seconds + self.late_seconds))
        return min(lasting, LONGEST_URL_SECONDS)

    @property
    def central_url(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'central.db'}"

    @property
    def shard_urls(self) -> dict[str, str]:
        return dict(self.shards or {"main": f"sqlite:///{self.data_dir / 'tenants-main.db'}"})

    @property
    def base_url(self) -> str:
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")

    @property
    def objects_url(self) -> str:
        return self.storage_url or (self.data_dir / "objects").as_uri()


# Shorter messages than those of pydantic.
_PLAIN = {
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
}

S = TypeVar("S", bound=ArgumentsOnly)

# Tables of the file that belong to other parts. Their settings are imported only to give advice.
TABLES = {"worker": "comfyrelay.worker.settings:WorkerSettings", "desk": "comfyrelay.desk.settings:DeskSettings"}
# Nested tables, which `load_table` reads. They have no environment variables.
FILE_ONLY = {"desk": ("script",)}
_JSON_EXAMPLES = {
    "shards": 'an object of shard names and database URLs: {"main": "postgresql://…"}',
    "fleet_secrets": 'an object of stages and lists of secrets: {"production": ["…"]}',
    "aws_identity_certificates": 'an object of regions and PEM files: {"eu-central-1": "/etc/aws/eu-central-1.pem"}',
    "aws_identity_accounts": 'an object of stages and lists of accounts: {"production": ["123456789012"]}',
    "signing_secrets": 'a list of secrets: ["…"]',
    "allowed_origins": 'a list of origins: ["https://example.com"]',
    "capabilities": 'an object with more facts about the worker: {"zone": "attic"}',
}


def load_settings() -> Settings:
    """Read the settings of this process. The environment overrides the file."""
    return load(Settings)


def load(model: type[S], *, table: str | None = None, plain_names: Mapping[str, str] | None = None) -> S:
    """Read settings from the environment and the file, or a table of it. The environment overrides the file.

    `plain_names` maps settings to variables without the prefix. The variable with the prefix overrides them.
    """
    path = config_path()
    in_file = _read_file(path) if path else {}
    others = FILE_ONLY.get(table, ()) if table else TABLES
    own = in_file.get(table, {}) if table else in_file
    in_file = {key: value for key, value in own.items() if key not in others}
    in_environment = _read_environment(model, plain_names or {})
    try:
        return model(**{**in_file, **in_environment})
    except ValidationError as error:
        complaints = [_complaint(model, each, in_environment, path, table) for each in error.errors()]
        raise ConfigurationError("\n".join(complaints)) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectiveSetting:
    """A setting and its source: `environment`, `file` or `default`. The value of a secret is `None`."""

    name: str
    variable: str
    value: Any
    source: str
    is_secret: bool
    description: str


def effective_settings(settings: ArgumentsOnly) -> list[EffectiveSetting]:
    """Return all settings of a process with their sources."""
    model = type(settings)
    given, found = settings.model_fields_set, []
    values = settings.model_dump(mode="json")
    for name, field in model.model_fields.items():
        variable = _variable(model, name)
        is_named = bool(os.environ.get(variable))
        found.append(
            EffectiveSetting(
                name=name,
                variable=variable,
                value=None if not field.repr else values[name],
                source="default" if name not in given else "environment" if is_named else "file",
                is_secret=not field.repr,
                description=field.description or "",
            )
        )
    return found


def load_table(table: str, name: str) -> dict[str, Any] | None:
    """Read a nested table of the file; `None` if there is none."""
    path = config_path()
    found = (_read_file(path) if path else {}).get(table, {}).get(name)
    if found is not None and not isinstance(found, dict):
        raise ConfigurationError(f"{path}: [{table}.{name}] must be a table.")
    return found


def config_path() -> Path | None:
    """Return the path of the configuration file, if any."""
    named = os.environ.get(CONFIG_VARIABLE)
    if not named:
        here = Path(CONFIG_NAME)
        return here if here.is_file() else None
    path = Path(named).expanduser()
    if not path.is_file():
        raise ConfigurationError(
            f"{CONFIG_VARIABLE} is {path}, which is not a file. Create the file, or unset {CONFIG_VARIABLE}."
        )
    return path


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}.") from None


def _read_environment(model: type[ArgumentsOnly], plain_names: Mapping[str, str]) -> dict[str, Any]:
    prefix = _prefix(model)
    # treated like variables with the prefix
    plain = {f"{prefix}{key}".lower(): value for key, name in plain_names.items() if (value := os.environ.get(name))}
    source = EnvSettingsSource(model)
    source.env_vars = {**plain, **source.env_vars}
    try:
        return source()
    except SettingsError as error:
        # pydantic's message contains the field name only
        key = next((name for name in _JSON_EXAMPLES if f'"{name}"' in str(error)), "shards")
        raise ConfigurationError(
            f"{_variable(model, key)} is not valid JSON. It must be {_JSON_EXAMPLES[key]}."
        ) from None


def _complaint(
    model: type[ArgumentsOnly],
    error: ErrorDetails,
    in_environment: Mapping[str, Any],
    path: Path | None,
    table: str | None,
) -> str:
    context = error.get("ctx", {})
    message = _PLAIN[error["type"]].format(**context) if error["type"] in _PLAIN else error["msg"]
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    if not error["loc"]:
        return f"{message}."
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        where = f" in [{table}]" if table else ""
        return f"{path}: unknown setting {key!r}{where}. {_advice(model, key, table)}"
    place = "in the environment" if key in in_environment else f"as {key} in {path}"
    description = model.model_fields[key].description
    return f"{_variable(model, key)} ({description}): {message}. Correct it {place}."


def _advice(model: type[ArgumentsOnly], key: str, table: str | None) -> str:
    """Suggest a setting with a similar name, also from other tables."""
    places: dict[str, list[str]] = {}
    for name, where in TABLES.items():
        module, _, other = where.partition(":")
        for field in getattr(import_module(module), other).model_fields:
            places.setdefault(field, []).append(f"[{name}]")
    if table is None:
        places |= {name: [] for name in TABLES}
    else:
        places |= {field: ["the part before all tables"] for field in Settings.model_fields if field not in places}
    close = difflib.get_close_matches(key.lower(), [*model.model_fields, *places], n=1)
    if not close:
        return "Remove it or correct its name."
    if close[0] in model.model_fields:
        return f"Did you mean {close[0]!r}?"
    found = places[close[0]]
    return f"Did you mean {close[0]} in {' or '.join(found)}?" if found else f"Did you mean [{close[0]}]?"


def _variable(model: type[ArgumentsOnly], key: str) -> str:
    return f"{_prefix(model)}{key.upper()}"


def _prefix(model: type[ArgumentsOnly]) -> str:
    return str(model.model_config["env_prefix"])
