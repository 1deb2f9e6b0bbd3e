"""Rules for email addresses and new passwords."""

import re
import unicodedata
from itertools import pairwise

MAX_EMAIL_LENGTH = 254
MIN_PASSWORD_LENGTH = 8
MAX_PASSWORD_LENGTH = 1024
MIN_DIFFERENT_CHARACTERS = 5
# Without the characters that end, quote or comment an address: `a(b)@x.example` is another spelling of `a@x.example`.
_EMAIL = re.compile(r'[^@()<>\[\],;:\\"]+@[^@()<>\[\],;:\\"]+')
# Invisible letters, marks and symbols that Unicode does not count as format characters.
_BLANK = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_PADDING = re.compile(r"^[\W\d_]+|[\W\d_]+$")
# Frequent passwords, most of them without the digits and punctuation that people add.
_COMMON_WORDS = """
abc abcd abcdef admin administrator asdf asdfasdf asdfgh asdfghjk asdfghjkl baseball batman changeit changeme charlie
comfyrelay comfyui computer default dragon family flower football freedom guest hallo hello iloveyou internet jennifer
jordan killer letmein login loveme master michael monkey mustang naruto ninja pass passw0rd p@ssw0rd p@ssword passwd
passwort password passwordpassword pokemon princess qazwsx qazwsxedc qwer qwert qwerty qwertyui qwertyuiop qwertz
qwertzui qwertzuiop root secret server shadow soccer starwars summer sunshine superman system temp test testing testtest
trustno username user welcome winter zxcv zxcvbn zxcvbnm
1q2w3e4r 1q2w3e4r5t 1qaz2wsx q1w2e3r4 q1w2e3r4t5 zaq12wsx 123qweasd 12345qwert 1234qwer qwer1234 asdf1234 abcd1234
1a2b3c4d a1b2c3d4 147258369
"""
_COMMON = frozenset(_COMMON_WORDS.split())


def normalize_email(email: str) -> str:
    """Return the form in which addresses are stored and compared: compatible characters and case are unified."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", email).lower())


def email_problem(email: str) -> str | None:
    """Explain why this is not an email address; `None` if it is one."""
    normal = normalize_email(email)
    if _EMAIL.fullmatch(normal) is None:
        return "This is not an email address."
    if len(normal) > MAX_EMAIL_LENGTH:
        return f"This must have at most {MAX_EMAIL_LENGTH} characters."
    return (
        None
        if all(map(_is_visible, email))
        else "This contains a space or an invisible character. Type the address again."
    )


def password_problem(password: str, *, email: str | None = None) -> str | None:
    """Explain why a new password is too weak; `None` if it is accepted."""
    # A passphrase contains spaces.
    visible = "".join(char for char in password if char == " " or _is_visible(char))
    if len(visible) < MIN_PASSWORD_LENGTH:
        return f"This must have at least {MIN_PASSWORD_LENGTH} {'' if visible == password else 'visible '}characters."
    if len(password) > MAX_PASSWORD_LENGTH:
        return f"This must have at most {MAX_PASSWORD_LENGTH} characters."
    text = unicodedata.normalize("NFKC", visible).casefold()
    if len({*text}) < MIN_DIFFERENT_CHARACTERS:
        return f"This repeats a few characters. Use at least {MIN_DIFFERENT_CHARACTERS} different ones."
    word = _PADDING.sub("", text)
    if text in _COMMON or word in _COMMON or _is_sequence(text):
        return "This is one of the most common passwords. Choose another one."
    if email is not None:
        address = normalize_email(email)
        if {text, word} & {address, address.partition("@")[0]}:
            return "This is the email address. Choose a password that others do not know."
    return None


def _is_visible(char: str) -> bool:
    """Whether a character is visible. Spaces, control, format and undefined characters are not."""
    return not _BLANK.match(char) and unicodedata.category(char)[0] not in "CZ"


def _is_sequence(text: str) -> bool:
    """Whether the characters are in sequence, as in `12345678` or `hgfedcba`."""
    # On a keyboard, 0 follows 9.
    modulus = 10 if text.isdecimal() else 0x110000
    return len({(ord(right) - ord(left)) % modulus for left, right in pairwise(text)}) == 1
