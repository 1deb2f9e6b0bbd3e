"""Email addresses and new passwords that are refused."""

import pytest

from comfyrelay.domain.credentials import email_problem, normalize_email, password_problem


@pytest.mark.parametrize(
    "email",
    [
        "ada",
        "@example.com",
        "ada@",
        "ada@x@example.com",
        "ada\uff20x@example.com",
        "ada @example.com",
        "ada\u200b@example.com",
        "ada@exam\u00adple.com",
        "\u202eada@example.com",
        "ada\u3164@example.com",
        "ada\ufe0f@example.com",
        "ada\x7f@example.com",
        "ada\u00a0@example.com",
        "a" * 250 + "@example.com",
        "\ufdfa" * 40 + "@example.com",
        # Other spellings of an address, and addresses that Python's email library fails to write.
        "ada(1)@example.com",
        "ada@(1)example.com",
        "ada\uff081\uff09@example.com",
        "<ada@example.com>",
        '"ada"@example.com',
        "ada,eve@example.com",
        "ada@[",
    ],
)
def test_invalid_email_is_refused(email: str) -> None:
    assert email_problem(email) is not None


@pytest.mark.parametrize("email", ["ada@example.com", "jürgen@bücher.example", "用户@例子.广告", "a+b@x.y"])
def test_email_of_any_script_is_accepted(email: str) -> None:
    assert email_problem(email) is None


def test_equal_looking_emails_are_equal() -> None:
    composed, decomposed, wide = "jürgen@x.com", "ju\u0308rgen@x.com", "\uff2aürgen@x.com"
    assert {normalize_email(email) for email in (composed, decomposed, wide, composed.upper())} == {composed}
    assert normalize_email(normalize_email("\u0130x@x.com")) == normalize_email("\u0130x@x.com")


@pytest.mark.parametrize(
    ("password", "reason"),
    [
        ("short", "at least 8 characters"),
        ("\u200b\u200c\u200d\u200e\u200f\u2060\u2061\ufeff", "at least 8 visible characters"),
        ("\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u3000", "at least 8 visible characters"),
        ("kQ7!\u200b\u200c\u200d\u2060\u3164", "at least 8 visible characters"),
        ("pass\u200bword", "most common"),
        ("x" * 1025, "at most 1024 characters"),
        (" " * 8, "repeats a few characters"),
        ("abababab", "repeats a few characters"),
        ("password", "most common"),
        ("Password1!", "most common"),
        ("\uff50assword", "most common"),
        ("12345678", "most common"),
        ("8765432109", "most common"),
        ("abcdefgh", "most common"),
        ("1q2w3e4r", "most common"),
        ("Ada.Lovelace@Example.com", "email address"),
        ("ada.lovelace", "email address"),
        ("ada.lovelace1815", "email address"),
    ],
)
def test_weak_password_is_refused(password: str, reason: str) -> None:
    assert reason in (password_problem(password, email="ada.lovelace@example.com") or "")


@pytest.mark.parametrize("password", ["correct horse battery", "x" * 4 + "7k!qz", "пароль от почты", "password of ada"])
def test_strong_password_is_accepted(password: str) -> None:
    assert password_problem(password, email="ada@example.com") is None
