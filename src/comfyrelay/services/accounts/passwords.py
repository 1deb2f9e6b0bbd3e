"""How passwords are hashed."""

from pwdlib import PasswordHash

# Slow on purpose: a quarter of a second of processor time per hash.
HASHER = PasswordHash.recommended()
