"""Identifiers. Time-ordered, so that new rows land at the end of their indexes; their order means nothing else."""

import hashlib
import json
from typing import Any

import uuid_utils

# The formats of posters and of previews.
POSTERS = ("webp",)
PREVIEWS = ("mp4", "webm")


def new_id() -> str:
    return str(uuid_utils.uuid7())


def new_lease_token() -> str:
    """Random throughout: a lease token is a secret."""
    return str(uuid_utils.uuid4())


def output_id(lease_token: str) -> str:
    """The id of what one lease uploads: another for each lease, and the same however often it is asked for."""
    h = hashlib.sha256(b"output of " + lease_token.encode()).hexdigest()
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-8{h[17:20]}-{h[20:32]}"


def upload_path(*, tenant_id: str, job_id: str, lease_token: str, extension: str) -> str:
    """Where the holder of a lease puts its output: all that a URL for it can write."""
    return f"{job_folder(tenant_id, job_id)}/upload-{output_id(lease_token)}.{extension.lstrip('.')}"


def output_path(file_id: str, *, tenant_id: str, job_id: str, extension: str) -> str:
    """Where an output is that counts."""
    return f"{job_folder(tenant_id, job_id)}/output-{file_id}.{extension.lstrip('.')}"


def poster_path(path: str, extension: str) -> str:
    """Where the poster of a file is: beside it, by a name that follows from its own."""
    return f"{path}.poster.{extension}"


def preview_path(path: str, extension: str) -> str:
    return f"{path}.preview.{extension}"


def beside(path: str) -> list[str]:
    """All that may lie beside a file: whoever removes it removes these, whether they are known of or not."""
    return [*(poster_path(path, each) for each in POSTERS), *(preview_path(path, each) for each in PREVIEWS)]


def shown_by(path: str) -> str:
    """The file that a poster or a preview stands for; any other path is its own."""
    for name in ("poster", "preview"):
        whole, found, _ = path.rpartition(f".{name}.")
        if found and path in beside(whole):
            return whole
    return path


def job_folder(tenant_id: str, job_id: str) -> str:
    """Where everything is that the leases of a job have brought."""
    return f"tenants/{tenant_id}/ai-jobs/{job_id}"


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
