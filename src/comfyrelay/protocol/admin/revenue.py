"""The admin API: revenue and GPU cost."""

from comfyrelay.protocol.base import AnswerBody


class Revenue(AnswerBody):
    """Completed jobs of an effect, tenant or day. `name` is the slug of the effect, the email of the tenant, or the
    day. `tokens` were charged, and `revenue` is their value (null without a value of a token). `cost` is the cost of
    `gpu_seconds` on machines with a price, also of runs that failed."""

    name: str
    jobs: int
    tokens: int
    revenue: float | None
    gpu_seconds: float
    cost: float
