"""Missing requirements of a graph."""

from comfyrelay.domain.capabilities import RequirementKind
from comfyrelay.protocol.base import AnswerBody
from comfyrelay.protocol.fields import OpenEnum


class MissingItem(AnswerBody):
    """A node type or model that some workers are missing. `workers` is the number of eligible workers that have it.
    `on` contains their names if the caller may see them. `source` is the place where the author of the workflow gets
    the model, or the package of the node, if known."""

    kind: OpenEnum[RequirementKind]
    name: str
    workers: int
    on: list[str]
    source: str | None = None


class Missing(AnswerBody):
    """The requirements that no worker meets: `items` lists them, `text` is a sentence for the user."""

    text: str
    items: list[MissingItem]
