"""Sessions of ComfyUI's editor in a browser. ComfyRelay's page creates a code, and the editor exchanges it once.

Codes and sessions are stored as tokens, but hashed differently: a session is valid only for ComfyUI's API, and other
tokens are not valid as sessions. Both end together with the token that created the code.
"""

import secrets

from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.accounts import TokenScope, User
from comfyrelay.errors import Unauthorized
from comfyrelay.services.accounts.sign_in import check_token_limit, hash_secret
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import api_tokens
from comfyrelay.store.database import Tx

# Long enough to follow a redirect.
CODE_SECONDS = 60.0
SESSION_SECONDS = 86_400.0
# Names in the list of tokens.
CODE_NAME, SESSION_NAME = "link to the editor", "editor"


class EditorSessions:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def create_code(self, user: User, *, parent_id: str | None) -> str:
        """Create a code that starts one session. Both end together with the parent: the token or session that requested
        the code. The pass of a desk's owner is not a parent. Raises `Conflict` if the user has too many tokens."""
        code = secrets.token_urlsafe(32)

        async def work(tx: Tx) -> None:
            await check_token_limit(tx, user)
            name, token_hash = CODE_NAME, _code_hash(code)
            await _create(tx, user, name=name, token_hash=token_hash, seconds=CODE_SECONDS, parent_id=parent_id)

        await self._databases.central.run(TransactionStep.TENANT, work)
        return code

    async def start(self, code: str) -> str:
        """Use a code, and return the secret of a new session. Raises `Unauthorized` for an invalid code."""
        secret, used = secrets.token_urlsafe(32), _code_hash(code)

        async def work(tx: Tx) -> None:
            user = await api_tokens.owner(tx, used, scope=TokenScope.COMFYUI)
            if user is None or not await api_tokens.revoke(tx, user.id, token_hash=used):
                raise Unauthorized("This link was already used or has expired.")
            name, token_hash, parent_id = SESSION_NAME, _session_hash(secret), await api_tokens.parent_of(tx, used)
            await _create(tx, user, name=name, token_hash=token_hash, seconds=SESSION_SECONDS, parent_id=parent_id)

        await self._databases.central.run(TransactionStep.TENANT, work)
        return secret

    async def find_user(self, secret: str) -> User | None:
        """Return the user of a session."""
        async with self._databases.central.read() as tx:
            return await api_tokens.owner(tx, _session_hash(secret), scope=TokenScope.COMFYUI)


async def _create(tx: Tx, user: User, *, name: str, token_hash: str, seconds: float, parent_id: str | None) -> None:
    await api_tokens.create(
        tx,
        id_=new_id(),
        user_id=user.id,
        name=name,
        token_hash=token_hash,
        lifetime_seconds=seconds,
        scope=TokenScope.COMFYUI,
        parent_id=parent_id,
    )


def _code_hash(code: str) -> str:
    return f"editor-link:{hash_secret(code)}"


def _session_hash(secret: str) -> str:
    return f"editor:{hash_secret(secret)}"
