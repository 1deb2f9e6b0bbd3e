"""Job requests and the checks that need no database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from comfyrelay.domain.ids import digest
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.webhooks import url_problem
from comfyrelay.errors import Forbidden, InvalidInput
from comfyrelay.text import is_storable

# Prefixes of keys that the engine creates.
RESERVED_KEYS = ("batch:", "retry:")
_JOB_FIELDS = ("tenant_id", "user_id", "idempotency_key", "webhook_url", "max_wait_seconds", "only_worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemRequest:
    """Inputs of one job."""

    input_payload: Mapping[str, Any] = field(default_factory=dict)
    input_file_id: str | None = None
    video_id: str | None = None
    label: str | None = None
    # Only a desk has output folders.
    output_folder: str | None = None
    # Labels by which the user finds the job.
    metadata: Mapping[str, str] = field(default_factory=dict)
    # The servers that forwarded the job. Not part of the digest.
    via: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmissionRequest:
    """The fields that requests for jobs and batches share."""

    tenant_id: str
    user_id: str
    idempotency_key: str
    effect_id: int | None = None
    workflow_slug: str | None = None
    priority: int = 0
    webhook_url: str | None = None
    # By default, the server's stage.
    stage: Stage | None = None
    # After this time, the job may run on more expensive workers.
    max_wait_seconds: int | None = None
    # The fields below are not part of the digest.
    # Whether to accept the job even if no worker meets its requirements yet; `None` if the client cannot choose that.
    wait_for_missing: bool | None = False
    # Whether error messages may name workers.
    shows_workers: bool = False
    # Whether a copy of an equal job's output is accepted.
    reuse: bool = False
    # Whether the request comes from a guest of a desk, whose texts must follow the policy for tenants.
    is_guest: bool = False

    def shared_fields(self) -> dict[str, Any]:
        return {shared.name: getattr(self, shared.name) for shared in fields(SubmissionRequest)}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest(SubmissionRequest):
    """A request to run an effect, or one of the user's workflows, with inputs."""

    item: ItemRequest = field(default_factory=ItemRequest)
    delay_seconds: float = 0.0
    # The fields below are not part of the digest.
    # A test run needs no effect and costs nothing.
    is_test: bool = False
    only_worker: str | None = None
    # The price that the user has seen.
    expected_tokens: int | None = None

    def job_fields(self) -> dict[str, Any]:
        """Return the fields that have the same name in the job record."""
        return {name: getattr(self, name) for name in _JOB_FIELDS}

    def digest(self) -> str:
        return digest(
            {
                "effect_id": self.effect_id,
                "workflow_slug": self.workflow_slug,
                "input_payload": dict(self.item.input_payload),
                "input_file_id": self.item.input_file_id,
                "video_id": self.item.video_id,
                "label": self.item.label,
                "output_folder": self.item.output_folder,
                "priority": self.priority,
                "delay_seconds": self.delay_seconds,
                "webhook_url": self.webhook_url,
                "stage": self.stage,
                **wait_limit(self.max_wait_seconds),
                # Omitted if empty, so that older digests of jobs without labels remain valid.
                **({"metadata": dict(self.item.metadata)} if self.item.metadata else {}),
            }
        )


def wait_limit(max_wait_seconds: int | None) -> dict[str, int]:
    """Return the part of a digest for the wait limit. It is empty without a limit, so that older digests remain
    valid."""
    return {} if max_wait_seconds is None else {"max_wait_seconds": max_wait_seconds}


def chosen_stage(user: User, stage: Stage | None) -> Stage | None:
    """Return the requested stage, which only an administrator may choose."""
    if stage is not None and not user.is_admin:
        raise Forbidden("Only an administrator may choose the stage.")
    return stage


def check_texts(*, idempotency_key: str, allow_private: bool, **others: str | None) -> None:
    """Refuse empty or reserved keys, texts that cannot be stored, and invalid webhook URLs."""
    errors = {
        name: "This contains a character that cannot be stored."
        for name, text in {"idempotency_key": idempotency_key, **others}.items()
        if text is not None and not is_storable(text)
    }
    url = others.get("webhook_url")
    problem = None if url is None else url_problem(url, allow_private=allow_private)
    if problem is not None:
        errors.setdefault("webhook_url", problem)
    if not idempotency_key:
        errors["idempotency_key"] = "This is required."
    elif idempotency_key.startswith(RESERVED_KEYS):
        errors["idempotency_key"] = f"A key must not begin with {' or '.join(RESERVED_KEYS)}."
    if errors:
        raise InvalidInput(errors=errors)
