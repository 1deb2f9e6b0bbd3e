"""Who may add and run their own workflows, and the price of a run."""

from comfyrelay.domain.prices.metered import MILLI, MeteredPrice
from comfyrelay.errors import Forbidden
from comfyrelay.services.accounts.tenancy import Tenancy
from comfyrelay.settings import Settings

NOT_ALLOWED = "Your account can run only effects. Ask an administrator to allow your own workflows."


class OwnWorkflowAccess:
    def __init__(self, settings: Settings, tenancy: Tenancy) -> None:
        self._is_open = settings.own_workflows == "everyone"
        self._tenancy = tenancy
        rate = round(settings.own_workflow_tokens_per_second * MILLI)
        # `None` if runs are free.
        self.price = (
            MeteredPrice(millitokens_per_second=rate, max_seconds=settings.own_workflow_max_seconds) if rate else None
        )

    async def is_allowed(self, tenant_id: str) -> bool:
        return self._is_open or (await self._tenancy.own_limits(tenant_id)).may_add_workflows

    async def require(self, tenant_id: str) -> None:
        """Raise `Forbidden` unless the tenant may add and run its own workflows."""
        if not await self.is_allowed(tenant_id):
            raise Forbidden(NOT_ALLOWED)
