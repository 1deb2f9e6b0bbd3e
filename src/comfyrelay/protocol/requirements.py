"""Missing requirements of a graph."""

from comfyrelay.domain.capabilities import RequirementKind
from comfyrelay.protocol.base import AnswerBody
from comfyrelay.protocol.fields import OpenEnum


class MissingItem(AnswerBody):
    """A missing node or model. `workers` is how many eligible workers have it, `on` their names, if the caller may see
    them."""

    kind: OpenEnum[RequirementKind]
    name: str
    workers: int
    on: list[str]


class Missing(AnswerBody):
    """The requirements that no worker meets, as a list and as a sentence."""

    text: str
    items: list[MissingItem]
