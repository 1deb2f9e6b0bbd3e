"""A TCP proxy in front of PostgreSQL that refuses connections with a chosen error."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import asyncpg


@dataclass
class Gate:
    """Refuse connections with the SQLSTATE `refuses_with`; forward them to the server if it is None."""

    url: str
    server: asyncpg.Connection
    refuses_with: str | None
    refused: asyncio.Queue[str] = field(default_factory=asyncio.Queue)


@asynccontextmanager
async def open_gate(url: str, *, refuses_with: str | None) -> AsyncIterator[Gate]:
    server = await asyncpg.connect(url)
    folder, port = await server.fetchval("SHOW unix_socket_directories"), await server.fetchval("SHOW port")
    name = await server.fetchval("SELECT current_database()")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # decline TLS
        await reader.readexactly(8)
        writer.write(b"N")
        if gate.refuses_with is not None:
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4)
            fields = b"".join((b"SFATAL\0VFATAL\0C", gate.refuses_with.encode(), b"\0Mnot now\0\0"))
            writer.write(b"E" + (len(fields) + 4).to_bytes(4) + fields)
            gate.refused.put_nowait(gate.refuses_with)
        else:
            server_reader, server_writer = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")
            await asyncio.gather(_forward(reader, server_writer), _forward(server_reader, writer))
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = listener.sockets[0].getsockname()
    gate = Gate(f"postgresql://postgres@{address[0]}:{address[1]}/{name}", server, refuses_with)
    try:
        yield gate
    finally:
        listener.close()
        await server.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()
