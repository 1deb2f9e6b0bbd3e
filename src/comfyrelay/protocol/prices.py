"""The user API: the price of jobs before they are submitted."""

from typing import Annotated

from pydantic import Field

from comfyrelay.domain.bulk import MAX_ITEMS
from comfyrelay.protocol.base import AnswerBody, Request, example
from comfyrelay.protocol.fields import RowId, Slug
from comfyrelay.protocol.jobs import Item


class PriceRequest(Item):
    """An effect or one of your workflows, with the inputs of a job."""

    model_config = example(effect_id=1, input_payload={"prompt": "a cat in the rain"})

    effect_id: RowId | None = None
    workflow_slug: Slug | None = None


class JobPrice(AnswerBody):
    """The tokens that the job would reserve. A job that is charged by the second costs at most this."""

    tokens: int


class BatchPriceRequest(Request):
    """An effect or one of your workflows, with the inputs of the jobs of a batch."""

    model_config = example(effect_id=1, items=[{"input_payload": {"steps": 8}}, {"input_payload": {"steps": 20}}])

    effect_id: RowId | None = None
    workflow_slug: Slug | None = None
    items: Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS)]


class BatchPrice(AnswerBody):
    """The tokens that all items together would reserve, and those of each item, in order."""

    tokens: int
    items: list[int]
