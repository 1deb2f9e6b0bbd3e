"""What a job is called that nobody gave a label: by what it runs, its input and its prompt."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from comfyrelay.domain.payloads import StoredFile
from comfyrelay.domain.properties import Role, Value
from comfyrelay.text import excerpt

_LENGTH = 60


def default_label(what: str | None, primary: StoredFile | None, values: Sequence[Value]) -> str | None:
    """`what` is not said of the items of a batch: the batch says it."""
    source = PurePosixPath(primary.name).stem if primary is not None and primary.name else ""
    prompt = next((each.value for each in values if each.property.role is Role.PROMPT), "")
    parts = [excerpt(str(each), length=_LENGTH) for each in (what or "", source, prompt)]
    return " · ".join(filter(None, parts)) or None
