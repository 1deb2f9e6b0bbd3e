"""Notify other systems that jobs have ended."""

from collections.abc import Callable

from comfyrelay.services.context import ServiceContext
from comfyrelay.services.webhooks.deliveries import DeliveryService
from comfyrelay.services.webhooks.endpoints import Endpoints
from comfyrelay.services.webhooks.overview import DeliveryOverview
from comfyrelay.services.webhooks.sender import WebhookSender

__all__ = ["Webhooks"]


class Webhooks:
    def __init__(self, context: ServiceContext, *, on_recorded: Callable[[], None]) -> None:
        databases = context.databases
        allow_private = context.settings.webhook_allow_private
        sender = WebhookSender(allow_private=allow_private)
        self.endpoints = Endpoints(databases, allow_private=allow_private)
        self.deliveries = DeliveryService(databases, sender, on_recorded=on_recorded)
        self.overview = DeliveryOverview(databases)
