"""How it stands with telling somebody of the end of a job. Apart from the signing, which takes a package of servers."""

from enum import StrEnum


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


class DeliveryState(StrEnum):
    """How a delivery stands: given up, tried in vain and to be tried again, not tried yet, or delivered."""

    DEAD = "dead"
    FAILING = "failing"
    PENDING = "pending"
    DELIVERED = "delivered"


def standing_of(status: str, attempts: int) -> DeliveryState:
    if status == DeliveryStatus.GIVEN_UP:
        return DeliveryState.DEAD
    if status == DeliveryStatus.DELIVERED:
        return DeliveryState.DELIVERED
    return DeliveryState.FAILING if attempts else DeliveryState.PENDING
