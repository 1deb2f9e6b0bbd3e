"""Credit payments that a provider reports, once per event.

First the event is written to the central database, then the tokens are credited in the tenant's shard. If the process
crashes in between, the provider gets no response and sends the event again, which completes the credit.
"""

import structlog

from comfyrelay.domain.payments import Payment, signature_problem
from comfyrelay.errors import Conflict, NotFound, Unauthorized
from comfyrelay.services.accounts.ledger import Ledger
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import payments
from comfyrelay.store.central.payments import PaymentEvent
from comfyrelay.store.database import Tx

log = structlog.get_logger(__name__)


class Payments:
    def __init__(self, databases: Databases, ledger: Ledger, *, secret: str | None) -> None:
        """Without a `secret`, payments are refused."""
        self._databases = databases
        self._ledger = ledger
        self._secret = secret

    async def check_signature(self, body: bytes, signature: str) -> None:
        """Require a recent signature with the secret, by the clock of the database."""
        if self._secret is None:
            raise NotFound("This server does not accept payments.")
        async with self._databases.central.read() as tx:
            now = await tx.now()
        if (problem := signature_problem(signature, body, secret=self._secret, now=now)) is not None:
            raise Unauthorized(problem)

    async def credit(self, payment: Payment) -> str:
        """Credit a payment once per event id, and return the tenant's id."""

        async def work(tx: Tx) -> PaymentEvent:
            tenant_id = await payments.tenant_of(tx, tenant_id=payment.tenant_id, email=payment.email)
            if tenant_id is None:
                raise NotFound("There is no such tenant.")
            event = PaymentEvent(
                provider_event_id=payment.event_id,
                tenant_id=tenant_id,
                amount=payment.amount,
                currency=payment.currency,
            )
            known = await payments.record(tx, event)
            if (known.tenant_id, known.amount) != (event.tenant_id, event.amount):
                raise Conflict("This event was already reported with another amount or for another tenant.")
            return known

        event = await self._databases.central.run(TransactionStep.PAYMENT, work)
        await self._ledger.credit(
            event.tenant_id, event.amount, reference=payment.reference, description=payment.description
        )
        log.info("payment.credited", event_id=payment.event_id, tenant_id=event.tenant_id, amount=event.amount)
        return event.tenant_id
