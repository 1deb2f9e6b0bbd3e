"""The texts of mails to users. `studio` is the name of the studio, or the host of the server."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Mail:
    subject: str
    body: str


def sign_up_mail(url: str, *, studio: str) -> Mail:
    return _mail(
        f"Confirm your address for {studio}",
        f"Someone, probably you, wants to create an account on {studio} with this address.",
        "Open this link to choose a password. It works once, for a day:",
        url,
        "If it was not you, ignore this mail: no account is created.",
    )


def already_registered_mail(url: str, *, studio: str) -> Mail:
    return _mail(
        f"You have an account on {studio}",
        f"Someone, probably you, wanted to create an account on {studio} with this address, but there already is one.",
        "Sign in here, or ask there for a new password:",
        url,
        "If it was not you, ignore this mail.",
    )


def invitation_mail(url: str, *, studio: str, invited_by: str) -> Mail:
    return _mail(
        f"Invitation to {studio}",
        f"{invited_by} has created an account for you on {studio}.",
        "Open this link to choose a password. It works once, for a day:",
        url,
    )


def reset_mail(url: str, *, studio: str) -> Mail:
    return _mail(
        f"Choose a new password for {studio}",
        f"Someone, probably you, asked for a new password on {studio}.",
        "Open this link to choose it. It works once, for a day:",
        url,
        "If it was not you, ignore this mail: your password does not change.",
    )


def email_mail(url: str, *, studio: str) -> Mail:
    return _mail(
        f"Confirm your address for {studio}",
        f"This address was given for an account on {studio}.",
        "Open this link to confirm it. It works once, for a day:",
        url,
        "If it was not you, ignore this mail: nothing changes.",
    )


def changed_email_mail(new_email: str, *, studio: str) -> Mail:
    return _mail(
        f"Your address on {studio} was changed",
        f"Your account on {studio} now has the address {new_email}. You can no longer sign in with this one.",
        "If it was not you, ask the administrator at once.",
    )


def changed_password_mail(url: str, *, studio: str) -> Mail:
    return _mail(
        f"Your password on {studio} was changed",
        f"The password of your account on {studio} was changed. All other sessions have ended.",
        "If it was not you, ask for a new password at once:",
        url,
    )


def deleted_account_mail(*, studio: str) -> Mail:
    return _mail(
        f"Your account on {studio} was deleted",
        f"Your account on {studio} was deleted. Your files, jobs and workflows are being erased.",
    )


def _mail(subject: str, *paragraphs: str) -> Mail:
    return Mail(subject=subject, body="\n\n".join(paragraphs) + "\n")
