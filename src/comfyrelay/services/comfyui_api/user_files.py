"""The files that ComfyUI's editor keeps on the server for each user: saved workflows and settings."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from comfyrelay.errors import Conflict, InvalidInput, NotFound, TooLarge
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import comfyui, ledger
from comfyrelay.store.tenant.comfyui import UserFile
from comfyrelay.text import format_bytes, is_storable

__all__ = ["UserFile", "UserFiles"]

MAX_FILES = 2000
MAX_FILE_BYTES = 8 * 1024**2
MAX_BYTES = 128 * 1024**2
MAX_PATH_LENGTH = 500


class UserFiles:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def list(self, tenant_id: str, folder: str) -> Sequence[UserFile]:
        """Return the files below a folder, in the order of their paths."""
        start = f"{checked_path(folder)}/" if folder else ""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await comfyui.list_files(tx, tenant_id, folder=start)
        # SQLite ignores case when it compares the beginning.
        return [file for file in found if file.path.startswith(start)]

    async def find(self, tenant_id: str, path: str) -> UserFile | None:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await comfyui.find_file(tx, tenant_id, checked_path(path))

    async def read(self, tenant_id: str, path: str) -> bytes | None:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await comfyui.read_file(tx, tenant_id, checked_path(path))

    async def write(self, tenant_id: str, path: str, content: bytes, *, overwrite: bool = True) -> UserFile:
        """Create or replace a file. Raises `Conflict` if the file exists and must not be replaced."""
        path = checked_path(path)

        async def work(tx: Tx) -> UserFile:
            # The lock prevents concurrent writes from exceeding the limits together.
            await ledger.lock_wallet(tx, tenant_id)
            if not overwrite and await comfyui.find_file(tx, tenant_id, path) is not None:
                raise Conflict("This file exists already.")
            await _check_space(tx, tenant_id, path, content)
            return await comfyui.write_file(tx, tenant_id, path, content)

        return await (await self._databases.shard_of(tenant_id)).run(TransactionStep.TENANT, work)

    async def change_json(self, tenant_id: str, path: str, changes: Mapping[str, Any]) -> None:
        """Change values of a JSON object. The object is created if it does not exist."""
        path = checked_path(path)

        async def work(tx: Tx) -> None:
            await ledger.lock_wallet(tx, tenant_id)
            content = orjson.dumps({**_parse_object(await comfyui.read_file(tx, tenant_id, path)), **changes})
            await _check_space(tx, tenant_id, path, content)
            await comfyui.write_file(tx, tenant_id, path, content)

        await (await self._databases.shard_of(tenant_id)).run(TransactionStep.TENANT, work)

    async def read_json(self, tenant_id: str, path: str) -> dict[str, Any]:
        """Return a JSON object; empty if the file does not exist or contains something else."""
        return _parse_object(await self.read(tenant_id, path))

    async def move(self, tenant_id: str, path: str, to: str, *, overwrite: bool) -> UserFile:
        path, to = checked_path(path), checked_path(to)

        async def work(tx: Tx) -> UserFile:
            await ledger.lock_wallet(tx, tenant_id)
            if path != to and await comfyui.find_file(tx, tenant_id, to) is not None:
                if not overwrite:
                    raise Conflict("This file exists already.")
                if await comfyui.find_file(tx, tenant_id, path) is not None:
                    await comfyui.delete_file(tx, tenant_id, to)
            moved = await comfyui.move_file(tx, tenant_id, path, to)
            if moved is None:
                raise NotFound("You have no such file.")
            return moved

        return await (await self._databases.shard_of(tenant_id)).run(TransactionStep.TENANT, work)

    async def delete(self, tenant_id: str, path: str) -> None:
        path = checked_path(path)
        shard = await self._databases.shard_of(tenant_id)
        if not await shard.run(TransactionStep.TENANT, lambda tx: comfyui.delete_file(tx, tenant_id, path)):
            raise NotFound("You have no such file.")


async def _check_space(tx: Tx, tenant_id: str, path: str, content: bytes) -> None:
    if len(content) > MAX_FILE_BYTES:
        raise TooLarge(f"A file of the editor has at most {format_bytes(MAX_FILE_BYTES)}.")
    files, size = await comfyui.file_usage(tx, tenant_id, except_path=path)
    if files >= MAX_FILES or size + len(content) > MAX_BYTES:
        raise TooLarge(f"The editor keeps at most {MAX_FILES} files of {format_bytes(MAX_BYTES)} together.")


def _parse_object(content: bytes | None) -> dict[str, Any]:
    try:
        found = orjson.loads(content) if content is not None else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def checked_path(path: str) -> str:
    """Return a relative path. Refuses paths that lead outside."""
    parts = path.strip("/").split("/")
    if not is_storable(path) or len(path) > MAX_PATH_LENGTH or "\\" in path or {"", ".", ".."} & set(parts):
        raise InvalidInput("This is not a valid file path.")
    return "/".join(parts)
