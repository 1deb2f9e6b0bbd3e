"""Settings from the environment (`COMFYRELAY_…`) and `comfyrelay.toml`.

Nothing is read at import, and nothing when `Settings` is constructed: only `load_settings` looks around.
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
    "in_force",
    "load",
    "load_settings",
    "load_table",
]

ENV_PREFIX = "COMFYRELAY_"
CONFIG_VARIABLE = f"{ENV_PREFIX}CONFIG"
CONFIG_NAME = "comfyrelay.toml"

# No object storage signs for longer.
LONGEST_URL_SECONDS = 7 * 24 * 3600.0

DATABASE_SCHEMES = ("sqlite:///", "postgresql://", "postgres://")

Stage = Literal["staging", "production"]
GraphPolicyMode = Literal["deny", "allow", "off"]


def _database_url(url: str) -> str:
    # the URL is not repeated in the message: it may hold a password
    if not url.startswith(DATABASE_SCHEMES):
        raise ValueError(f"a database URL must start with one of {', '.join(DATABASE_SCHEMES)}")
    return url


DatabaseUrl = Annotated[str, AfterValidator(_database_url)]


def _top_up_url(url: str) -> str:
    # it is a link in the pages of users
    if not url.startswith(("https://", "http://", "mailto:")):
        raise ValueError("this must be an https://, http:// or mailto: address")
    return url


TopUpUrl = Annotated[str, AfterValidator(_top_up_url)]


def split_words(value: Any) -> Any:
    return [part for each in value.split(",") if (part := each.strip())] if isinstance(value, str) else value


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise ValueError(f"{text!r} is no address and no network; write 10.0.0.7 or 10.0.0.0/24") from None


# `a, b` in the environment, a list in the file
Words = Annotated[list[str], NoDecode, BeforeValidator(split_words)]
Networks = Annotated[list[Annotated[str, AfterValidator(_network)]], NoDecode, BeforeValidator(split_words)]
Count = Annotated[int, Field(gt=0)]
CountOrZero = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ArgumentsOnly(BaseSettings):
    """Settings that look nowhere by themselves; `load` fills them, tests construct them directly."""

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
        """Arguments only. pydantic would merge `shards` of two sources; one must replace the other."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


class Settings(ArgumentsOnly):
    """What one process of the control plane needs to know."""

    data_dir: Path = Field(
        default_factory=data_folder, description="folder for everything local; its user alone can read it"
    )
    database_url: DatabaseUrl | None = Field(
        None, repr=False, description="central database; a file in the data folder when not set"
    )
    shards: dict[str, DatabaseUrl] = Field(
        {},
        repr=False,
        description="JSON object: shard name → database URL; one file in the data folder when empty",
    )
    storage_url: str | None = Field(None, description="object storage; a folder in the data folder when not set")
    stage: Stage = Field("production", description="stage of the jobs this server takes")

    host: str = Field("127.0.0.1", description="address that the server listens on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8420, description="port that the server listens on")
    public_url: str | None = Field(None, description="how clients and workers reach the server; from host and port")
    fleet_secrets: dict[Stage, list[str]] = Field(
        {}, repr=False, description="JSON object: stage → secrets that workers register with; generated when empty"
    )
    signing_secrets: list[str] = Field(
        [], repr=False, description="JSON list: the first signs URLs of local files, all verify; generated when empty"
    )
    payment_webhook_secret: str | None = Field(
        None, repr=False, description="signs the payment webhook; the endpoint is off when not set"
    )
    top_up_url: TopUpUrl | None = Field(
        None, description="https:, http: or mailto: address where users get more tokens, shown with their balance"
    )
    allowed_origins: list[str] = Field([], description="JSON list: origins whose pages may call the API and upload")
    allow_registration: bool = Field(True, description="whether anybody may make an account")
    session_days: Seconds = Field(30, description="days after which a browser has to sign in again")
    requests_per_minute: Count = Field(10, description="worker registrations, and sign-ins, a minute from one address")
    trusted_proxies: Networks = Field([], description="comma-separated: proxies whose X-Forwarded-For counts")
    validate_asg_instance: bool = Field(False, description="check that `i-…` workers belong to an Auto Scaling group")
    webhook_allow_private: bool = Field(False, description="whether webhooks may go to private addresses")

    max_body_bytes: Count = Field(256 * 1024, description="largest JSON body of a call")
    max_large_body_bytes: Count = Field(8 * 1024**2, description="largest body with a graph, a batch or a report")
    max_body_values: Count = Field(250_000, description="most values in such a body")
    max_graph_nodes: Count = Field(2000, description="most nodes of a graph")
    max_own_workflows: Count = Field(1000, description="most workflows that a tenant may have of its own")
    max_batch_nodes: Count = Field(1_000_000, description="most nodes of a batch: of its graph, times its items")
    body_seconds: Seconds = Field(60, description="longest that the body of a call may take to arrive")
    max_anonymous_body_bytes: Count = Field(16 * 1024, description="largest body of a sign-in or a registration")
    anonymous_body_seconds: Seconds = Field(10, description="longest that such a body, or a payment, may take")
    header_seconds: Seconds = Field(15, description="longest that the headers of a call may take to arrive")
    max_half_open_requests: Count = Field(500, description="connections that may be without whole headers at once")
    max_unfinished_bodies: Count = Field(500, description="bodies of calls that may be arriving at once")
    max_unfinished_bodies_per_address: Count = Field(100, description="the same from one address")
    max_connections: Count = Field(10_000, description="connections at once; fewer where fewer files may be open")

    max_upload_bytes: Count = Field(2 * 1024**3, description="largest file that a user may upload")
    max_output_bytes: Count = Field(2 * 1024**3, description="largest file that a job may make")
    max_output_files: Count = Field(1000, description="files of one run that a desk keeps")
    output_validation: Literal["fail", "warn"] = Field("fail", description="what a missing or broken output does")
    probe_processes: Count = Field(2, description="processes that look into media at once")
    probe_timeout_seconds: Seconds = Field(20, description="longest that looking into one file may take")
    probe_memory_bytes: Count = Field(2 * 1024**3, description="memory that looking into one file may take")
    probe_max_pixels: Count = Field(100_000_000, description="pixels that an image, or a frame, may have")
    probe_max_frames: Count = Field(10_000, description="frames that an image that moves may have")
    poster_seconds: Seconds = Field(5, description="longest that a finished job waits for its poster and preview")
    retention_days: Annotated[float, Field(gt=0)] | None = Field(None, description="days that videos are kept")
    unused_upload_hours: Seconds = Field(24, description="hours after which an upload that nothing uses is removed")

    lease_ttl_seconds: Seconds = Field(900, description="how long a lease lives without a heartbeat")
    late_grace_seconds: SecondsOrZero | None = Field(
        None, description="how long an expired lease that nobody waits for goes on; the lease time when not set"
    )
    max_attempts: Count = Field(3, description="leases a job may use up before it fails")
    retry_backoff_seconds: SecondsOrZero = Field(5, description="first wait of a job that cannot be built yet")
    burst_micros_per_hour: int | None = Field(
        None, ge=0, description="what all jobs that go to Comfy Cloud may cost in an hour, in millionths of a currency"
    )
    reaper_interval_seconds: Seconds = Field(5, description="how often expired leases are looked for")
    recovery_interval_seconds: Seconds = Field(3, description="how often jobs without a dispatch are looked for")

    max_fleet_workers: Count = Field(50, description="workers that may register in one fleet")
    default_fleet: str | None = Field(None, description="fleet that runs every new workflow, those of users too")
    fleet_commands_dir: Path | None = Field(
        None, description="folder with the programs of this host that fleets may run, and no others"
    )
    scaling: bool = Field(True, description="whether this server launches and ends machines of fleets that are scaled")
    worker_stale_seconds: Seconds = Field(300, description="silence after which a worker counts as gone")
    max_workers: Count | None = Field(None, description="workers that may register in all fleets together")
    stale_worker_hours: Seconds = Field(2, description="hours of silence after which a worker of a fleet is removed")
    cloudwatch_metrics: bool = Field(False, description="whether figures of fleets go to CloudWatch each minute")
    cloudwatch_namespace: Annotated[str, Field(min_length=1, max_length=255)] = Field(
        "ComfyRelay", description="namespace of those figures"
    )
    aws_identity_certificates: dict[str, Path] = Field(
        {}, description="AWS's certificates for instance identity documents, a PEM file for each region; none: off"
    )
    aws_identity_accounts: dict[Stage, list[str]] = Field(
        {}, description="AWS accounts whose instances may register with their identity document, by stage"
    )
    aws_identity_max_age_seconds: Seconds = Field(
        3600, description="how long after its launch an instance may first register with its identity document"
    )
    max_failures_before_block: Count = Field(1, description="failures after which a worker is blocked")
    block_cooldown_seconds: SecondsOrZero = Field(60, description="how long such a block lasts")
    warm_lookahead_rows: CountOrZero = Field(32, description="rows looked ahead for a warm workflow; 0: none")
    warm_wait_seconds: SecondsOrZero = Field(120, description="longest that a row is passed over for a warm one")

    max_active_jobs_per_user: Count = Field(5, description="jobs one user may have queued or running")
    user_priority_min: int = Field(-10, description="lowest priority a user may ask for")
    user_priority_max: int = Field(10, description="highest priority a user may ask for")

    graph_policy: GraphPolicyMode = Field(
        "deny", description="which nodes graphs of tenants may have: `deny`: none known as dangerous, `allow`, `off`"
    )
    graph_denied_nodes: Words = Field([], description="comma-separated: node classes that they may not have either")
    graph_allowed_nodes: Words = Field([], description="comma-separated: node classes that they may have")

    presigned_ttl_seconds: Count = Field(900, description="how long a pre-signed URL works")
    database_pool_size: Count = Field(10, description="connections kept to each PostgreSQL database")
    database_wait_seconds: SecondsOrZero = Field(60, description="how long a start waits for the central database")

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
        """How long a lease goes on after its end while nobody waits for its job."""
        return self.lease_ttl_seconds if self.late_grace_seconds is None else self.late_grace_seconds

    @property
    def lease_url_ttl_seconds(self) -> float:
        """URLs of a lease outlive it, grace included: they are renewed by the first heartbeat in their second half, so
        half of their time must be enough for a worker that is silent from then on."""
        lasting = max(self.presigned_ttl_seconds, 2 * (self.lease_ttl_seconds + self.late_seconds))
        return min(lasting, LONGEST_URL_SECONDS)

    @property
    def central_url(self) -> str:
        """The central database."""
        return self.database_url or f"sqlite:///{self.data_dir / 'central.db'}"

    @property
    def shard_urls(self) -> dict[str, str]:
        """The database of each shard."""
        return dict(self.shards or {"main": f"sqlite:///{self.data_dir / 'tenants-main.db'}"})

    @property
    def base_url(self) -> str:
        """How clients and workers reach the server."""
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")

    @property
    def objects_url(self) -> str:
        """The object storage."""
        return self.storage_url or (self.data_dir / "objects").as_uri()


# Where pydantic says a thing twice, or in many words.
_PLAIN = {
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
}

S = TypeVar("S", bound=ArgumentsOnly)

# Other parts have tables of their own in the file; their settings are theirs, and looked up only for advice.
TABLES = {"worker": "comfyrelay.worker.settings:WorkerSettings", "desk": "comfyrelay.desk.settings:DeskSettings"}
# Tables within those that only the file can say; `load_table` reads them.
FILE_ONLY = {"desk": ("script",)}
_JSON_EXAMPLES = {
    "shards": 'an object of shard names and database URLs: {"main": "postgresql://…"}',
    "fleet_secrets": 'an object of stages and lists of secrets: {"production": ["…"]}',
    "aws_identity_certificates": 'an object of regions and PEM files: {"eu-central-1": "/etc/aws/eu-central-1.pem"}',
    "aws_identity_accounts": 'an object of stages and lists of accounts: {"production": ["123456789012"]}',
    "signing_secrets": 'a list of secrets: ["…"]',
    "allowed_origins": 'a list of origins: ["https://example.com"]',
    "capabilities": 'an object of whatever the control plane should know: {"zone": "attic"}',
}


def load_settings() -> Settings:
    """Read the settings of this process; the environment beats the file."""
    return load(Settings)


def load(model: type[S], *, table: str | None = None, plain_names: Mapping[str, str] | None = None) -> S:
    """Read settings from the environment and the file, or a table of the file; the environment beats the file.

    `plain_names` are variables without our prefix, by setting; the one with the prefix beats the plain one.
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
    """A setting as it counts; what is secret has no value here. `source` is `environment`, `file` or `default`."""

    name: str
    variable: str
    value: Any
    source: str
    is_secret: bool
    description: str


def in_force(settings: ArgumentsOnly) -> list[EffectiveSetting]:
    """All settings of a process, and where each comes from."""
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
    """A table within a table, as the file has it; `None` when it has none. The environment does not count."""
    path = config_path()
    found = (_read_file(path) if path else {}).get(table, {}).get(name)
    if found is not None and not isinstance(found, dict):
        raise ConfigurationError(f"{path}: write [{table}.{name}] as a table.")
    return found


def config_path() -> Path | None:
    """The configuration file that counts here, if there is one."""
    named = os.environ.get(CONFIG_VARIABLE)
    if not named:
        here = Path(CONFIG_NAME)
        return here if here.is_file() else None
    path = Path(named).expanduser()
    if not path.is_file():
        raise ConfigurationError(
            f"{CONFIG_VARIABLE} names {path}, which is not a file. Create it, or unset {CONFIG_VARIABLE}."
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
    # as if they had been given with the prefix
    plain = {f"{prefix}{key}".lower(): value for key, name in plain_names.items() if (value := os.environ.get(name))}
    source = EnvSettingsSource(model)
    source.env_vars = {**plain, **source.env_vars}
    try:
        return source()
    except SettingsError as error:
        # pydantic names the field, and only the field
        key = next((name for name in _JSON_EXAMPLES if f'"{name}"' in str(error)), "shards")
        raise ConfigurationError(f"{_variable(model, key)} is not valid JSON. Write {_JSON_EXAMPLES[key]}.") from None


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
    """What is meant may have its place in another table."""
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
        return "Remove it, or correct its name."
    if close[0] in model.model_fields:
        return f"Did you mean {close[0]!r}?"
    found = places[close[0]]
    return f"Did you mean {close[0]} in {' or '.join(found)}?" if found else f"Did you mean [{close[0]}]?"


def _variable(model: type[ArgumentsOnly], key: str) -> str:
    return f"{_prefix(model)}{key.upper()}"


def _prefix(model: type[ArgumentsOnly]) -> str:
    return str(model.model_config["env_prefix"])
