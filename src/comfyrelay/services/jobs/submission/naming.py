"""Default labels of jobs: workflow or effect, input name and prompt."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from comfyrelay.domain.payloads import StoredFile
from comfyrelay.domain.properties import Role, Value
from comfyrelay.text import excerpt

_LENGTH = 60


def default_label(target_name: str | None, primary: StoredFile | None, values: Sequence[Value]) -> str | None:
    """Items of a batch have no `target_name`: the batch shows it."""
    source = PurePosixPath(primary.name).stem if primary is not None and primary.name else ""
    prompt = next((value.value for value in values if value.property.role is Role.PROMPT), "")
    parts = [excerpt(str(each), length=_LENGTH) for each in (target_name or "", source, prompt)]
    return " · ".join(filter(None, parts)) or None
