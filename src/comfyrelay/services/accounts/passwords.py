"""Password hashing."""

from pwdlib import PasswordHash

# Slow by design: 0.25 s of CPU time per hash.
HASHER = PasswordHash.recommended()
