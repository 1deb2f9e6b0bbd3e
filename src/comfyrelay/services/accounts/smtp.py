"""Write a mail, and hand it over to a mail server. These functions block."""

import smtplib
import ssl
from dataclasses import dataclass
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate
from urllib.parse import SplitResult, unquote

from comfyrelay.services.accounts.mail_texts import Mail

TIMEOUT_SECONDS = 20.0
# Answers of a mail server after which another attempt is useless.
PERMANENT = range(500, 600)


@dataclass(frozen=True, kw_only=True, slots=True)
class Letter:
    """A mail with its envelope. `host` is the server that sends it."""

    id: str
    sender: str
    recipient: str
    host: str
    mail: Mail


def send(url: SplitResult, letter: Letter) -> tuple[str, bool] | None:
    """Send a mail once. Return the problem, and whether it is permanent."""
    try:
        _deliver(url, _message(letter), letter.recipient)
    except (smtplib.SMTPException, OSError, MessageError, ValueError) as error:
        return _explain(error)
    return None


def _message(letter: Letter) -> EmailMessage:
    message = EmailMessage()
    message["From"] = letter.sender
    # As one address: in a header, a comma would split it into two addresses.
    message["To"] = Address(addr_spec=letter.recipient)
    message["Subject"] = letter.mail.subject
    message["Date"] = formatdate(usegmt=True)
    # The id is the same for each attempt, so that mail programs show a repeated mail only once.
    message["Message-ID"] = f"<{letter.id}@{letter.host.partition(':')[0] or 'localhost'}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(letter.mail.body)
    return message


def _deliver(url: SplitResult, message: EmailMessage, recipient: str) -> None:
    """Hand a mail over to the mail server of this URL."""
    host, port = url.hostname or "localhost", url.port
    context = ssl.create_default_context()
    if url.scheme == "smtps":
        connection: smtplib.SMTP = smtplib.SMTP_SSL(host, port or 465, timeout=TIMEOUT_SECONDS, context=context)
    else:
        connection = smtplib.SMTP(host, port or (587 if url.scheme == "smtp" else 25), timeout=TIMEOUT_SECONDS)
    with connection:
        if url.scheme == "smtp":
            connection.starttls(context=context)
        if url.username is not None:
            connection.login(unquote(url.username), unquote(url.password or ""))
        connection.send_message(message, to_addrs=[recipient])


def _explain(error: Exception) -> tuple[str, bool]:
    """Describe why a mail was not sent, and return whether another attempt is useless."""
    match error:
        case smtplib.SMTPRecipientsRefused():
            [(code, reply), *_] = error.recipients.values()
            return f"The mail server refused the recipient: {code} {_decode(reply)}", code in PERMANENT
        case smtplib.SMTPAuthenticationError():
            # An administrator may correct the password while the mail is waiting.
            return f"The mail server refused the password: {error.smtp_code}", False
        case smtplib.SMTPResponseException():
            why = f"The mail server answered {error.smtp_code} {_decode(error.smtp_error)}"
            return why, error.smtp_code in PERMANENT
        case smtplib.SMTPException():
            return f"The mail server failed: {error}", False
        case OSError():
            return f"The mail server cannot be reached: {error}", False
        case _:
            return f"The mail cannot be written: {error}", True


def _decode(text: bytes | str) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text
