"""Credit payments that a provider reports, and take back the tokens of refunded payments, once per event.

First the event is written to the central database, then the tokens are credited in the tenant's shard. If the process
crashes in between, the provider gets no response and sends the event again, which completes the credit.

A payment for a deleted account is written and refused, so that an administrator finds it and returns the money.
"""

from datetime import datetime

import structlog

from comfyrelay.domain.payments import Payment, Refund, signature_problem
from comfyrelay.errors import Conflict, NotFound, Unauthorized
from comfyrelay.services.accounts.ledger import Ledger
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage, make_page
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import payments
from comfyrelay.store.central.payments import ListedPayment, PaymentEvent
from comfyrelay.store.database import Tx

log = structlog.get_logger(__name__)


class Payments:
    def __init__(self, databases: Databases, ledger: Ledger, *, secret: str | None) -> None:
        """Without a `secret`, payments are refused."""
        self._databases = databases
        self._ledger = ledger
        self._secret = secret

    async def check_signature(self, body: bytes, signature: str) -> None:
        """Require a recent signature with the secret, according to the clock of the database."""
        if self._secret is None:
            raise NotFound("This server does not accept payments.")
        async with self._databases.central.read() as tx:
            now = await tx.now()
        if (problem := signature_problem(signature, body, secret=self._secret, now=now)) is not None:
            raise Unauthorized(problem)

    async def credit(self, payment: Payment) -> str:
        """Credit a payment once per event id, and return the tenant's id. Raises `Conflict` if the account was
        deleted before."""

        async def work(tx: Tx) -> PaymentEvent:
            tenant_id = await payments.tenant_of(tx, tenant_id=payment.tenant_id, email=payment.email)
            if tenant_id is None:
                raise NotFound("There is no such tenant.")
            event = PaymentEvent(
                provider_event_id=payment.event_id,
                tenant_id=tenant_id,
                amount=payment.amount,
                currency=payment.currency,
                is_refused=await payments.is_deleted(tx, tenant_id),
            )
            known = await payments.record(tx, event)
            if (known.tenant_id, known.amount, known.refund_of) != (event.tenant_id, event.amount, None):
                raise Conflict("This event was already reported with a different amount or for another tenant.")
            return known

        event = await self._databases.central.run(TransactionStep.PAYMENT, work)
        if event.is_refused:
            log.warning("payment.refused", event_id=payment.event_id, tenant_id=event.tenant_id, amount=event.amount)
            raise Conflict(
                "The account of this tenant was deleted, so nothing was credited. Refund the payment at the payment "
                "provider. Console → Payments lists it."
            )
        await self._ledger.credit(
            event.tenant_id, event.amount, reference=payment.reference, description=payment.description
        )
        log.info("payment.credited", event_id=payment.event_id, tenant_id=event.tenant_id, amount=event.amount)
        return event.tenant_id

    async def refund(self, refund: Refund) -> str:
        """Take back the tokens of a refunded payment, once per event id, and return the tenant's id.

        Tokens that were already spent are owed: later credits and refunds of jobs pay them. Nothing is taken back for a
        payment that was not credited.
        """

        async def work(tx: Tx) -> PaymentEvent:
            payment = await payments.lock(tx, refund.payment_id)
            if payment is None:
                raise NotFound(f"There is no payment {refund.payment_id!r}. Report the payment first.")
            if (known := await payments.get(tx, refund.event_id)) is not None:
                if known.refund_of != refund.payment_id or refund.amount not in (None, known.amount):
                    raise Conflict("This event was already reported with a different amount or for another payment.")
                return known
            left = payment.amount - await payments.refunded(tx, refund.payment_id)
            amount = left if refund.amount is None else refund.amount
            if amount <= 0 or amount > left:
                raise Conflict(f"Only {left} of {payment.amount} tokens of this payment can still be returned.")
            event = PaymentEvent(
                provider_event_id=refund.event_id,
                tenant_id=payment.tenant_id,
                amount=amount,
                currency=payment.currency,
                refund_of=refund.payment_id,
                is_refused=payment.is_refused,
            )
            return await payments.record(tx, event)

        event = await self._databases.central.run(TransactionStep.PAYMENT, work)
        if not event.is_refused:
            await self._ledger.take_back(
                event.tenant_id,
                event.amount,
                reference=refund.reference,
                description="Taken back: the payment was refunded.",
                may_owe=True,
            )
        log.info("payment.refunded", event_id=refund.event_id, tenant_id=event.tenant_id, amount=event.amount)
        return event.tenant_id

    async def page(
        self, *, begins: datetime | None = None, ends: datetime | None = None, cursor: str | None, limit: int
    ) -> ResultPage[ListedPayment]:
        """Return payments, newest first."""
        async with self._databases.central.read() as tx:
            found = await payments.newest(tx, begins=begins, ends=ends, before_id=cursor, limit=limit + 1)
        return make_page(found, limit=limit, key=lambda payment: payment.provider_event_id)
