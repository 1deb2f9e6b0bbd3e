"""Accounts: users, tenants, tokens and payments."""

from comfyrelay.services.accounts.ledger import Ledger
from comfyrelay.services.accounts.links import AccountLinks
from comfyrelay.services.accounts.mailed_links import MailedLinks
from comfyrelay.services.accounts.mailer import Mailer
from comfyrelay.services.accounts.own_account import OwnAccount
from comfyrelay.services.accounts.own_workflows import OwnWorkflowAccess
from comfyrelay.services.accounts.payments import Payments
from comfyrelay.services.accounts.revenue import RevenueReports
from comfyrelay.services.accounts.sign_in import SignIn
from comfyrelay.services.accounts.tenancy import Tenancy
from comfyrelay.services.context import ServiceContext

__all__ = ["Accounts"]


class Accounts:
    def __init__(self, context: ServiceContext) -> None:
        databases = context.databases
        self.tenancy = Tenancy(databases)
        self.own_workflows = OwnWorkflowAccess(context.settings, self.tenancy)
        self.ledger = Ledger(databases)
        self.revenue = RevenueReports(databases, token_value=context.settings.token_value)
        self.sign_in = SignIn(databases, self.tenancy)
        base_url = context.settings.base_url
        self.mailer = Mailer(databases, context.settings)
        self.links = AccountLinks(databases, self.tenancy, self.sign_in, self.mailer, base_url=base_url)
        self.mailed_links = MailedLinks(databases, self.links, self.mailer, base_url=base_url)
        self.own_account = OwnAccount(databases, self.sign_in, self.mailer, base_url=base_url)
        self.payments = Payments(databases, self.ledger, secret=context.settings.payment_webhook_secret)
