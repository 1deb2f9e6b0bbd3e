"""Telling the systems of others that jobs have ended."""

from dataclasses import dataclass
from typing import Self

from comfyrelay.services.ground import Ground
from comfyrelay.services.webhooks.deliveries import Deliveries
from comfyrelay.services.webhooks.endpoints import Endpoints
from comfyrelay.services.webhooks.sender import WebhookSender

__all__ = ["Webhooks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhooks:
    endpoints: Endpoints
    deliveries: Deliveries

    @classmethod
    def over(cls, ground: Ground) -> Self:
        databases = ground.databases
        sender = WebhookSender(allow_private=ground.settings.webhook_allow_private)
        return cls(endpoints=Endpoints(databases), deliveries=Deliveries(databases, sender))
