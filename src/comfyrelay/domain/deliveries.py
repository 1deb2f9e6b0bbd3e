"""States of webhook deliveries. Separate from `webhooks`, which needs a package that only servers install."""

from enum import StrEnum


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


class DeliveryState(StrEnum):
    """State of a delivery for operators. A failing delivery is retried; a dead one was abandoned."""

    DEAD = "dead"
    FAILING = "failing"
    PENDING = "pending"
    DELIVERED = "delivered"


def delivery_state(status: str, attempts: int) -> DeliveryState:
    if status == DeliveryStatus.GIVEN_UP:
        return DeliveryState.DEAD
    if status == DeliveryStatus.DELIVERED:
        return DeliveryState.DELIVERED
    return DeliveryState.FAILING if attempts else DeliveryState.PENDING
