"""Settings of the control plane."""

import re
from contextlib import suppress
from email.utils import parseaddr
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from comfyrelay.configuration import ENV_PREFIX, ArgumentsOnly, load
from comfyrelay.system.user_folders import data_folder
from comfyrelay.text import one_line

# The longest lifetime that S3 allows for a signed URL.
MAX_URL_SECONDS = 7 * 24 * 3600.0
DATABASE_SCHEMES = ("sqlite:///", "postgresql://", "postgres://")

Stage = Literal["staging", "production"]
GraphPolicyMode = Literal["deny", "allow", "off"]
SignUp = Literal["open", "invitation", "closed"]


def _database_url(url: str) -> str:
    # The URL may contain a password, so the message does not repeat it.
    if not url.startswith(DATABASE_SCHEMES):
        raise ValueError(f"a database URL must start with one of {', '.join(DATABASE_SCHEMES)}")
    return url


DatabaseUrl = Annotated[str, AfterValidator(_database_url)]


def _link(url: str) -> str:
    # Users see this address as a link.
    if not url.startswith(("https://", "http://", "mailto:")):
        raise ValueError("must be an https://, http:// or mailto: address")
    return url


Link = Annotated[str, AfterValidator(_link)]


def _web_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError("must be an origin such as https://comfyui.relay.example")
    return url.rstrip("/")


# An origin, without a path.
WebAddress = Annotated[str, AfterValidator(_web_address)]


def _pack_name(name: str) -> str:
    # The name is part of the URLs of the pack's files. The editor's own files are in `core`, and ours in `comfyrelay`.
    if name in ("core", "comfyrelay") or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
        raise ValueError(
            "names of node packs may contain only letters, digits, dots, hyphens and underscores; "
            "core and comfyrelay are reserved"
        )
    return name


PackName = Annotated[str, AfterValidator(_pack_name)]

StudioName = Annotated[str, Field(min_length=1, max_length=60), AfterValidator(one_line)]
Color = Annotated[str, Field(pattern=r"^#[0-9A-Fa-f]{6}$")]

SMTP_SCHEMES = ("smtp", "smtps", "smtp+plain")
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def _smtp_url(url: str) -> str:
    # The URL may contain a password, so the message does not repeat it.
    parts, is_complete = None, False
    with suppress(ValueError):
        parts = urlsplit(url)
        is_complete = parts.scheme in SMTP_SCHEMES and bool(parts.hostname) and parts.port != 0
    if parts is None or not is_complete:
        raise ValueError("must have the form smtp://user:password@host:587, smtps://… or smtp+plain://…")
    if parts.scheme == "smtp+plain" and parts.password is not None and parts.hostname not in LOCAL_HOSTS:
        raise ValueError("sends the password without encryption; use smtp:// or smtps://")
    return url


SmtpUrl = Annotated[str, AfterValidator(_smtp_url)]


def _mail_from(sender: str) -> str:
    _name, address = parseaddr(sender)
    if "@" not in address.strip("@"):
        raise ValueError("must be an address such as studio@example.com or Studio <studio@example.com>")
    return sender


MailFrom = Annotated[str, AfterValidator(_mail_from)]


def split_commas(value: Any) -> Any:
    return [part for text in value.split(",") if (part := text.strip())] if isinstance(value, str) else value


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an address or network; use the form 10.0.0.7 or 10.0.0.0/24") from None


def _variable(name: str) -> str:
    if name.upper().startswith(ENV_PREFIX):
        raise ValueError(f"{name} is a setting of this server, and settings hold secrets; name other variables")
    return name


# `a, b` in the environment, or a list in the file.
CommaSeparated = Annotated[list[str], NoDecode, BeforeValidator(split_commas)]
VariableNames = Annotated[list[Annotated[str, AfterValidator(_variable)]], NoDecode, BeforeValidator(split_commas)]
Networks = Annotated[list[Annotated[str, AfterValidator(_network)]], NoDecode, BeforeValidator(split_commas)]
Count = Annotated[int, Field(gt=0)]
CountOrZero = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class AlertRule(BaseModel):
    """The receivers of alerts of one kind. A reported problem is not reported again for `quiet_minutes`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    urls: list[str] = Field(repr=False)
    quiet_minutes: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60

    @field_validator("urls")
    @classmethod
    def _are_urls(cls, urls: list[str]) -> list[str]:
        # A URL may contain a token, so the message does not repeat it.
        if not all(re.match(r"mailto:[^/]+@|[A-Za-z][A-Za-z0-9.+-]*://.", url) for url in urls):
            raise ValueError("must be mailto:someone@example.com, or a URL of apprise such as ntfys://host/topic")
        return urls


class Settings(ArgumentsOnly):
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
    comfyui_api_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        None,
        description="port on which [ComfyUI's own API](../howto/comfyui-api.md) and its editor listen; if not set, "
        "they are off",
    )
    comfyui_api_url: WebAddress | None = Field(
        None,
        description="URL at which browsers reach ComfyUI's API, such as `https://comfyui.relay.example`; if not set, "
        "the host of the public URL with `comfyui_api_port`",
    )
    editor_packs: dict[PackName, Path] = Field(
        {},
        description="JSON object: name of a node pack → folder with its scripts for "
        "[the editor](../howto/editor.md#scripts-of-node-packs); a copy that only administrators can change",
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
    metrics_token: str | None = Field(
        None, repr=False, description="bearer token that `/metrics` requires; if not set, it needs none"
    )
    traces_url: str | None = Field(
        None,
        repr=False,
        description="OTLP receiver for [traces](../howto/operate.md#traces) of jobs, such as "
        "`http://127.0.0.1:4318/v1/traces`; if not set, there are none",
    )
    token_value: SecondsOrZero | None = Field(
        None, description="what customers pay for a token, in the currency of machine prices, to compare both"
    )
    top_up_url: Link | None = Field(
        None, description="https:, http: or mailto: address where users buy tokens, shown next to their balance"
    )
    studio_name: StudioName | None = Field(None, description="name that users see instead of ComfyRelay")
    studio_logo: Path | None = Field(
        None, description="SVG, PNG or WebP file of at most 256 KiB, shown as the logo; square ones fit best"
    )
    studio_color: Color | None = Field(None, description="color of buttons and links, such as `#2f6fed`")
    imprint_url: Link | None = Field(None, description="address of the imprint, linked on the pages of users")
    terms_url: Link | None = Field(
        None, description="address of the terms, linked on the pages of users, who accept them when they sign up"
    )
    alerts: dict[str, AlertRule] = Field(
        {},
        repr=False,
        description="JSON object: kind of problem, or `*` for all others → `urls` and `quiet_minutes`; see the guide",
    )
    allowed_origins: list[str] = Field(
        [], description="JSON list: origins whose pages may call the API and upload files"
    )
    sign_up: SignUp = Field(
        "open",
        description="who may create an account: anyone (`open`), people invited by an administrator (`invitation`), or "
        "nobody (`closed`)",
    )
    smtp_url: SmtpUrl | None = Field(
        None,
        repr=False,
        description="mail server: `smtp://user:password@host:587` (STARTTLS), `smtps://…` (TLS) or `smtp+plain://…` "
        "(no encryption); if not set, no mail is sent",
    )
    mail_from: MailFrom | None = Field(None, description="sender of mails, such as `Studio <studio@example.com>`")
    session_days: Seconds = Field(30, description="days until a browser session expires")
    rate_limit_per_minute: Count = Field(
        10,
        description="worker registrations and sign-in attempts per minute and address; also webhook tests per user",
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
        8 * 1024**2, description="maximum size of a body with a batch, a worker report or a catalogue workflow"
    )
    max_body_values: Count = Field(250_000, description="maximum number of values in such a body")
    max_graph_bytes: Count = Field(
        2 * 1024**2, description="maximum size of a private workflow, and of the body that contains it"
    )
    max_workflow_bytes: Count | None = Field(
        512 * 1024**2, description="maximum size of a tenant's private workflows and jobs without a price together"
    )
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
    max_connections_per_address: Count = Field(
        1000, description="maximum number of connections per address; workers do not count"
    )
    max_connections_per_caller: Count = Field(
        500, description="maximum number of connections per user or worker; a worker may have two more for each slot"
    )
    idle_seconds: Seconds = Field(75, description="seconds after which an idle connection is closed")
    anonymous_idle_seconds: Seconds = Field(
        15, description="seconds after which an idle connection without an authenticated request is closed"
    )

    max_upload_bytes: Count = Field(2 * 1024**3, description="maximum size of an uploaded file")
    max_stored_bytes: Count | None = Field(
        20 * 1024**3, description="maximum size of all uploads of a tenant together; an administrator can change it"
    )
    max_stored_files: Count | None = Field(
        10_000, description="maximum number of uploads of a tenant; an administrator can change it"
    )
    max_output_bytes: Count = Field(2 * 1024**3, description="maximum size of an output file")
    max_output_files: Annotated[int, Field(gt=0, le=10_000)] = Field(
        1000, description="maximum number of output files that a job keeps"
    )
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
    unused_upload_hours: Seconds = Field(
        24, description="hours after which an upload is deleted that no job used, or whose jobs were all deleted"
    )

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
    recovery_interval_seconds: Seconds = Field(5, description="seconds between searches for jobs without a dispatch")

    max_fleet_workers: Count = Field(50, description="maximum number of workers per fleet")
    default_fleet: str | None = Field(None, description="fleet that runs every new workflow, including user workflows")
    fleet_commands_dir: Path | None = Field(
        None, description="folder with the programs that fleets may run on this host; no others are allowed"
    )
    fleet_environment: VariableNames = Field(
        [],
        description="comma-separated: names of environment variables that `local` machines and `command` scripts get "
        "in addition to the usual ones",
    )
    autoscaling: bool = Field(
        True, description="whether this server launches and terminates machines of autoscaled fleets"
    )
    worker_offline_seconds: Seconds = Field(
        90, description="seconds without a request after which a worker counts as offline and loses its leases"
    )
    max_workers: Count | None = Field(None, description="maximum number of workers in all fleets")
    offline_worker_retention_hours: Seconds = Field(
        2, description="hours without a request after which a fleet worker is removed"
    )
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

    own_workflows: Literal["permitted", "everyone"] = Field(
        "permitted",
        description="who may add and run their own workflows: users with an administrator's permission, or everyone",
    )
    own_workflow_tokens_per_second: SecondsOrZero = Field(
        1, le=1_000_000, description="price per second of such a run, in tokens; 0 if runs are free"
    )
    own_workflow_max_seconds: Annotated[int, Field(gt=0, le=7 * 86400)] = Field(
        600, description="seconds after which such a run is stopped, unless runs are free; their price is reserved"
    )

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
    backup_before_upgrade: bool = Field(
        True, description="copy SQLite databases before their schema is upgraded, and leave PostgreSQL to `upgrade`"
    )

    @field_validator("data_dir", "fleet_commands_dir", "studio_logo")
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

    @model_validator(mode="after")
    def _mail_is_complete(self) -> Self:
        if (self.smtp_url is None) != (self.mail_from is None):
            raise ValueError(f"{ENV_PREFIX}SMTP_URL and {ENV_PREFIX}MAIL_FROM must be set together")
        return self

    @property
    def are_own_runs_charged(self) -> bool:
        return self.own_workflow_tokens_per_second > 0

    @property
    def late_seconds(self) -> float:
        """Seconds that an expired lease continues while no other worker can run its job."""
        return self.lease_ttl_seconds if self.late_grace_seconds is None else self.late_grace_seconds

    @property
    def lease_url_ttl_seconds(self) -> float:
        """Lifetime of the URLs of a lease. The first heartbeat in the second half of this lifetime renews the URLs, so
        half of it must cover the lease and its grace period."""
        seconds = max(self.presigned_ttl_seconds, 2 * (self.lease_ttl_seconds + self.late_seconds))
        return min(seconds, MAX_URL_SECONDS)

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
    def comfyui_url(self) -> str | None:
        """The origin at which browsers reach ComfyUI's API, if it is on."""
        if self.comfyui_api_port is None:
            return None
        if self.comfyui_api_url is not None:
            return self.comfyui_api_url
        public = urlsplit(self.base_url)
        host = f"[{public.hostname}]" if ":" in (public.hostname or "") else public.hostname
        return f"{public.scheme}://{host}:{self.comfyui_api_port}"

    @property
    def objects_url(self) -> str:
        return self.storage_url or (self.data_dir / "objects").as_uri()


def load_settings(data_dir: Path | None = None) -> Settings:
    """Read the settings of this process. The environment overrides the file. `data_dir` is given on the command
    line."""
    return load(Settings, data_dir=data_dir)
