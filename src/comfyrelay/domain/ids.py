"""Identifiers and object storage paths of a server. A base install cannot import this module.

Ids are time-ordered only so that new ones are appended to the end of indexes.
"""

import hashlib
import json
from functools import lru_cache
from typing import Any

import uuid_utils

# File formats of derived files.
POSTERS = ("webp",)
PREVIEWS = ("mp4", "webm")


def new_id() -> str:
    return str(uuid_utils.uuid7())


def new_lease_token() -> str:
    """Return a random token, because lease tokens are secrets."""
    return str(uuid_utils.uuid4())


# Cached, because a lease and its report need the id three times.
@lru_cache(maxsize=4096)
def output_id(lease_token: str) -> str:
    """Return the id of a lease's output. It derives from the token, so repeated calls return the same id."""
    h = hashlib.sha256(b"output of " + lease_token.encode()).hexdigest()
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-8{h[17:20]}-{h[20:32]}"


def upload_path(*, tenant_id: str, job_id: str, lease_token: str, extension: str) -> str:
    """Return the only path that a lease may upload its first output to."""
    return f"{job_folder(tenant_id, job_id)}/upload-{output_id(lease_token)}.{extension.lstrip('.')}"


def more_upload_path(number: int, *, tenant_id: str, job_id: str, lease_token: str) -> str:
    """Return the only path that a lease may upload another output to. The type is chosen when the URL is signed."""
    return f"{job_folder(tenant_id, job_id)}/upload-{output_id(lease_token)}-{number}"


def output_path(file_id: str, *, tenant_id: str, job_id: str, extension: str) -> str:
    """Return the final path of an accepted output."""
    return f"{job_folder(tenant_id, job_id)}/output-{file_id}.{extension.lstrip('.')}"


def poster_path(path: str, extension: str) -> str:
    return f"{path}.poster.{extension}"


def preview_path(path: str, extension: str) -> str:
    return f"{path}.preview.{extension}"


def derived_paths(path: str) -> list[str]:
    """Return all possible poster and preview paths of a file. Remove them with it, even if none is recorded."""
    return [*(poster_path(path, name) for name in POSTERS), *(preview_path(path, name) for name in PREVIEWS)]


def source_path(path: str) -> str:
    """Return the path of the file that a poster or preview was derived from; other paths are returned unchanged."""
    for kind in ("poster", "preview"):
        source, separator, _ = path.rpartition(f".{kind}.")
        if separator and path in derived_paths(source):
            return source
    return path


def tenant_folder(tenant_id: str) -> str:
    """Return the folder of all objects of a tenant."""
    return f"tenants/{tenant_id}"


def job_folder(tenant_id: str, job_id: str) -> str:
    """Return the folder of all uploads of a job."""
    return f"{tenant_folder(tenant_id)}/ai-jobs/{job_id}"


def private_graph_path(tenant_id: str, graph_id: str) -> str:
    return f"{tenant_folder(tenant_id)}/graphs/{graph_id}.json"


def editor_path(graph_path: str) -> str:
    """Return the path of the editor file that a graph was converted from."""
    return f"{graph_path}.editor"


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
