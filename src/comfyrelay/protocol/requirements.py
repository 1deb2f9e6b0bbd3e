"""What workers lack for a graph."""

from comfyrelay.domain.capabilities import NeedKind
from comfyrelay.protocol.base import AnswerBody
from comfyrelay.protocol.fields import OpenEnum


class MissingItem(AnswerBody):
    """A node or a model: how many of the workers that could be given the job have it, and, for those who may know,
    which."""

    kind: OpenEnum[NeedKind]
    name: str
    workers: int
    on: list[str]


class Missing(AnswerBody):
    """Everything that keeps each worker from running it, and the same in a sentence."""

    text: str
    items: list[MissingItem]
