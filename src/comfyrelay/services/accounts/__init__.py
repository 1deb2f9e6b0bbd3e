"""Accounts: users, tenants, tokens and payments."""

from comfyrelay.services.accounts.ledger import Ledger
from comfyrelay.services.accounts.links import AccountLinks
from comfyrelay.services.accounts.payments import Payments
from comfyrelay.services.accounts.sign_in import SignIn
from comfyrelay.services.accounts.tenancy import Tenancy
from comfyrelay.services.context import ServiceContext

__all__ = ["Accounts"]


class Accounts:
    def __init__(self, context: ServiceContext) -> None:
        databases = context.databases
        self.tenancy = Tenancy(databases)
        self.ledger = Ledger(databases)
        self.sign_in = SignIn(databases, self.tenancy)
        self.links = AccountLinks(databases, self.tenancy, self.sign_in)
        self.payments = Payments(databases, self.ledger, secret=context.settings.payment_webhook_secret)
