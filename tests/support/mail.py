"""A real SMTP server that keeps the mails it gets."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from ssl import SSLContext
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

FROM = "Studio <studio@relay.test>"


@dataclass
class Mailbox:
    """The mails of one server in order of arrival; `refusal` is its answer to each recipient."""

    port: int = 0
    refusal: str | None = None
    password: str | None = None
    mails: "asyncio.Queue[EmailMessage]" = field(default_factory=asyncio.Queue)
    refused: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)

    @property
    def settings(self) -> dict[str, Any]:
        return {"smtp_url": f"smtp+plain://127.0.0.1:{self.port}", "mail_from": FROM}

    async def next(self) -> EmailMessage:
        """Wait for the next mail."""
        async with asyncio.timeout(60):
            return await self.mails.get()

    async def next_link(self, recipient: str) -> str:
        """Wait for the next mail, which must be to this recipient, and return the URL of its link."""
        mail = await self.next()
        assert mail["To"] == recipient
        return link_in(mail)

    # aiosmtpd defines the names of these hooks.
    async def handle_RCPT(  # noqa: N802
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if self.refusal is not None:
            self.refused.put_nowait(address)
            return self.refusal
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        content = envelope.content
        assert isinstance(content, bytes)
        mail = message_from_bytes(content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        assert envelope.rcpt_tos == [mail["To"]]
        self.mails.put_nowait(mail)
        return "250 OK"

    def authenticate(
        self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, given: object
    ) -> AuthResult:
        is_right = isinstance(given, LoginPassword) and given.password == (self.password or "").encode()
        return AuthResult(success=is_right)


def link_in(mail: EmailMessage) -> str:
    found = re.search(r"http://\S+", mail.get_content())
    assert found is not None
    return found[0]


def secret_in(url: str) -> str:
    return url.partition("#")[2]


@asynccontextmanager
async def mail_server(
    *, tls: SSLContext | None = None, starttls: SSLContext | None = None, password: str | None = None
) -> AsyncIterator[Mailbox]:
    loop = asyncio.get_running_loop()
    box = Mailbox(password=password)

    def connection() -> SMTP:
        return SMTP(
            box,
            loop=loop,
            hostname="localhost",
            tls_context=starttls,
            authenticator=box.authenticate,
            auth_required=password is not None,
            auth_require_tls=tls is None,
        )

    server = await loop.create_server(connection, "127.0.0.1", 0, ssl=tls)
    box.port = server.sockets[0].getsockname()[1]
    async with server:
        yield box
