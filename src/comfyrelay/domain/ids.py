"""Identifiers. Time-ordered, so that new rows land at the end of their indexes; their order means nothing else."""

import hashlib
import json
import uuid
from typing import Any

import uuid_utils

_OUTPUTS = uuid.UUID("8f6f2a3c-52c1-4f0b-9d57-6f2f6a1f5f10")


def new_id() -> str:
    return str(uuid_utils.uuid7())


def new_lease_token() -> str:
    """Random throughout: a lease token is a secret."""
    return str(uuid.uuid4())


def output_id(lease_token: str) -> str:
    """The id of the output file of one lease: another for each lease, and the same however often it is asked for."""
    return str(uuid.uuid5(_OUTPUTS, lease_token))


def output_path(*, tenant_id: str, job_id: str, lease_token: str, extension: str) -> str:
    return f"tenants/{tenant_id}/ai-jobs/{job_id}/output-{output_id(lease_token)}.{extension.lstrip('.')}"


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
