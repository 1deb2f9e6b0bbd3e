"""Versions of the processes that use the databases, read from a central database of any revision."""

import os
import socket

from sqlalchemy import text

from comfyrelay import __version__
from comfyrelay.domain.records.operations import ConnectedProcess, WorkerVersion
from comfyrelay.store.transaction import Tx

_PREFIX = "comfyrelay/"
# PostgreSQL cuts longer names.
MAX_NAME = 63

# Columns of the first revision only, because the table may be older than its definition.
_WORKERS = """
SELECT version, protocol, count(*) AS workers FROM workers
 WHERE last_seen_at >= relay_now(-300) GROUP BY version, protocol ORDER BY version, protocol
"""
_PROCESSES = """
SELECT DISTINCT application_name AS name FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'comfyrelay/%' AND application_name <> :own ORDER BY 1
"""


def process_name() -> str:
    """Return the name of this process's connections: its version, process and host."""
    return f"{_PREFIX}{__version__} {os.getpid()}@{socket.gethostname()}"[:MAX_NAME]


async def connected_processes(tx: Tx) -> list[ConnectedProcess]:
    """Return the other processes that are connected to this PostgreSQL database."""
    names = await tx.scalars(text(_PROCESSES).bindparams(own=process_name()))
    parts = (name.removeprefix(_PREFIX).partition(" ") for name in names)
    return [ConnectedProcess(name=name, version=version) for version, _, name in parts]


async def worker_versions(tx: Tx) -> list[WorkerVersion]:
    """Count the workers that sent a request in the last five minutes, by version."""
    return await tx.all(WorkerVersion, text(_WORKERS))
