"""Models of the forms of a desk."""

from datetime import datetime

from comfyrelay.protocol.base import AnswerBody


class Model(AnswerBody):
    """A model file that a field offers. The size and the time are null if ComfyUI does not report them."""

    name: str
    size_bytes: int | None
    modified_at: datetime | None


class ModelMetadata(AnswerBody):
    """The header of a model file: its title, and the trigger words of a LoRA, most important first."""

    title: str | None
    trigger_words: list[str]
