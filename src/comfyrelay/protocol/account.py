"""Bodies of the routes for users to manage their own account."""

from typing import Annotated

from pydantic import Field

from comfyrelay.protocol.base import AnswerBody, Request, example
from comfyrelay.protocol.fields import Email, Line
from comfyrelay.protocol.user import Password, ResetToken


class SignUpByMail(Request):
    """`to` is the page of the web app to open with the new account."""

    model_config = example(email="ada@example.com", name="Ada", to="/studio/effects/clip")

    email: Email
    name: Line | None = None
    to: Annotated[str, Field(max_length=2000, pattern=r"^/([^/\\\x00-\x1f][^\x00-\x1f]*)?$")] | None = None


class ForgottenPassword(Request):
    model_config = example(email="ada@example.com")

    email: Email


class EmailConfirmation(ResetToken):
    """The part after `#` in the link that was mailed to the new address."""


class ConfirmedEmail(AnswerBody):
    email: str


class PasswordChange(Request):
    model_config = example(current_password="correct horse battery", new_password="purple monkey dishwasher")

    current_password: Password
    new_password: Password


class EmailChange(Request):
    model_config = example(email="ada@example.org", password="correct horse battery")

    email: Email
    password: Password


class ChangedEmail(AnswerBody):
    is_changed: Annotated[bool, Field(description="false if the link that was mailed to the new address changes it")]


class AccountDeletion(Request):
    model_config = example(password="correct horse battery")

    password: Password


class Account(AnswerBody):
    """Your account. `sends_mail`: this server sends mail, so a new address must be confirmed."""

    email: str
    name: str
    is_verified: Annotated[bool, Field(description="whether you have opened a link that was mailed to this address")]
    sends_mail: bool
