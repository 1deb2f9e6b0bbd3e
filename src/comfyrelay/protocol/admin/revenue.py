"""The admin API: revenue and GPU cost."""

from comfyrelay.protocol.base import AnswerBody


class Revenue(AnswerBody):
    """Completed jobs of an effect, tenant or day. `name` is the slug of the effect, the email of the tenant, or the
    day. `tokens` is the number of charged tokens, and `revenue` their value (null if tokens have no configured value).
    `gpu_seconds` include failed runs. `unpriced_seconds` of them ran on machines without a price, and `cost` is the
    cost of the others."""

    name: str
    jobs: int
    tokens: int
    revenue: float | None
    gpu_seconds: float
    unpriced_seconds: float
    cost: float
