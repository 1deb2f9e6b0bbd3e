"""The user API: the price of a job before it is submitted."""

from comfyrelay.protocol.base import AnswerBody, example
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
