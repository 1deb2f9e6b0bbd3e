"""Who it is for: users, tenants, tokens and what is paid."""

from dataclasses import dataclass
from typing import Self

from comfyrelay.services.accounts.ledger import Ledger
from comfyrelay.services.accounts.payments import Payments
from comfyrelay.services.accounts.sign_in import SignIn
from comfyrelay.services.accounts.tenancy import Tenancy
from comfyrelay.services.ground import Ground

__all__ = ["Accounts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounts:
    tenancy: Tenancy
    sign_in: SignIn
    ledger: Ledger
    payments: Payments

    @classmethod
    def over(cls, ground: Ground) -> Self:
        databases = ground.databases
        tenancy, ledger = Tenancy(databases), Ledger(databases)
        return cls(
            tenancy=tenancy,
            sign_in=SignIn(databases, tenancy),
            ledger=ledger,
            payments=Payments(databases, ledger, secret=ground.settings.payment_webhook_secret),
        )
