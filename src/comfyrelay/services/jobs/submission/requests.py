"""What a user submits, as far as it can be checked without looking anything up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from comfyrelay.domain.ids import digest
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.webhooks import url_problem
from comfyrelay.errors import Forbidden, InvalidInput
from comfyrelay.text import is_storable

# Items of a batch and retries get keys of their own.
RESERVED_KEYS = ("batch:", "retry:")


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemRequest:
    """One job's own inputs."""

    input_payload: Mapping[str, Any] = field(default_factory=dict)
    input_file_id: str | None = None
    video_id: str | None = None
    label: str | None = None
    # only from this machine's own user
    output_folder: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """What a user submits: an effect, or a workflow of the user's own, and the inputs for it."""

    tenant_id: str
    user_id: str
    idempotency_key: str
    effect_id: int | None = None
    workflow_slug: str | None = None
    item: ItemRequest = field(default_factory=ItemRequest)
    priority: int = 0
    delay_seconds: float = 0.0
    webhook_url: str | None = None
    # Without one, the server's.
    stage: Stage | None = None
    # So long it may wait before it may cost more.
    max_wait_seconds: int | None = None
    # Whether it may wait until a worker has what it needs, whether its user may know the workers by name, whether a
    # copy of what an equal job has made will do, and the price that its user was told. None of them makes it another
    # request.
    wait_for_missing: bool = False
    shows_workers: bool = False
    # An administrator tries out a workflow of the catalogue, which needs no effect and costs nothing; on one worker
    # alone, if it is named.
    is_test: bool = False
    only_worker: str | None = None
    reuse: bool = False
    expected_tokens: int | None = None

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
            }
        )


def wait_limit(max_wait_seconds: int | None) -> dict[str, int]:
    """For digests: a request that says nothing of it is the same as before anybody could."""
    return {} if max_wait_seconds is None else {"max_wait_seconds": max_wait_seconds}


def chosen_stage(user: User, stage: Stage | None) -> Stage | None:
    """Only an administrator may name another stage than the server's."""
    if stage is not None and not user.is_admin:
        raise Forbidden("Only an administrator may choose the stage.")
    return stage


def check_texts(*, idempotency_key: str, allow_private: bool, **others: str | None) -> None:
    """Refuse a key that is empty or of the kind that the engine makes for itself, texts that cannot be kept, and a
    webhook that could never be sent."""
    errors = {
        name: "This contains a character that cannot be stored."
        for name, text in {"idempotency_key": idempotency_key, **others}.items()
        if text is not None and not is_storable(text)
    }
    if (url := others.get("webhook_url")) is not None and (
        problem := url_problem(url, allow_private=allow_private)
    ) is not None:
        errors.setdefault("webhook_url", problem)
    if not idempotency_key:
        errors["idempotency_key"] = "This is required."
    elif idempotency_key.startswith(RESERVED_KEYS):
        errors["idempotency_key"] = f"A key must not begin with {' or '.join(RESERVED_KEYS)}."
    if errors:
        raise InvalidInput(errors=errors)
