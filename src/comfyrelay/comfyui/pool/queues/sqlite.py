"""A durable queue in an SQLite file: jobs survive a crash of the process."""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from comfyrelay.comfyui.pool.queues.codec import dump_outcome, dump_ticket, load_outcome, load_ticket
from comfyrelay.comfyui.pool.queues.queue import Buckets, JobOutcome, PoolJobStatus, StoredJobs
from comfyrelay.comfyui.pool.queues.writer import Writer
from comfyrelay.comfyui.pool.ticket import Ticket
from comfyrelay.domain.queue.blocks import Block
from comfyrelay.errors import ConfigurationError, Conflict

# "ComR". Distinguishes a queue from databases of other programs.
APPLICATION_ID = 0x436F6D52
SCHEMA_VERSION = 2

CREATE_JOBS = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    sequence INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'completed', 'failed', 'canceled')),
    attempts INTEGER NOT NULL CHECK (attempts >= 0),
    ticket BLOB NOT NULL,
    graph BLOB,
    outcome BLOB,
    CHECK ((state IN ('queued', 'running')) = (graph IS NOT NULL)),
    CHECK ((state IN ('queued', 'running')) = (outcome IS NULL))
) WITHOUT ROWID;
CREATE TABLE attachments (
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (job_id, position)
);
"""
# Version 2 added this table.
CREATE_BLOCKS = """
CREATE TABLE blocks (
    client_id TEXT NOT NULL,
    workflow_hash TEXT NOT NULL,
    failure_count INTEGER NOT NULL,
    blocked_until TEXT,
    PRIMARY KEY (client_id, workflow_hash)
) WITHOUT ROWID;
"""
MARK = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""
PUT = "INSERT INTO jobs (id, sequence, state, attempts, ticket, graph) VALUES (?, ?, 'queued', ?, ?, ?)"
ATTACH = "INSERT INTO attachments (job_id, position, content) VALUES (?, ?, ?)"
PUT_BACK = "UPDATE jobs SET state = 'queued', attempts = ? WHERE id = ?"
BEGIN = "UPDATE jobs SET state = 'running', attempts = ? WHERE id = ?"
# The graph and files of a finished job are no longer needed, and make up most of its size.
SETTLE = "UPDATE jobs SET state = ?, attempts = ?, outcome = ?, graph = NULL WHERE id = ?"
DETACH = "DELETE FROM attachments WHERE job_id = ?"
FORGET = "DELETE FROM jobs WHERE id = ?"
RECOVER = "UPDATE jobs SET state = 'queued' WHERE state = 'running'"
BLOCK = "INSERT OR REPLACE INTO blocks (client_id, workflow_hash, failure_count, blocked_until) VALUES (?, ?, ?, ?)"
UNBLOCK = "DELETE FROM blocks WHERE client_id = ? AND workflow_hash = ?"
ALL_BLOCKS = "SELECT client_id, workflow_hash, failure_count, blocked_until FROM blocks"
ALL_JOBS = "SELECT id, sequence, state, attempts, ticket, graph, outcome FROM jobs ORDER BY sequence"
ALL_ATTACHMENTS = "SELECT job_id, position, content FROM attachments"


class SqliteQueue(Buckets):
    """A durable queue that loses no job if the process is killed. Only one pool at a time may use the file. A job that
    was running is queued again. The attempt counts, so that a job that kills the process runs out of attempts like any
    other."""

    durable = True

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self._path = Path(path)
        self._writer = Writer(self._connect)

    async def open(self) -> StoredJobs:
        stored = await self._writer.open(self._prepare)
        for ticket in stored.waiting:
            self.add(ticket)
        return stored

    async def put(self, ticket: Ticket) -> None:
        row = (ticket.id, ticket.sequence, ticket.attempts, dump_ticket(ticket), ticket.graph)
        contents = [
            (ATTACH, (ticket.id, position, attachment.source))
            for position, attachment in enumerate(ticket.attachments)
            if isinstance(attachment.source, bytes)
        ]
        await self._writer.write((PUT, row), *contents)
        self.add(ticket)

    async def put_back(self, ticket: Ticket) -> None:
        await self._writer.write((PUT_BACK, (ticket.attempts, ticket.id)))
        self.add(ticket)

    async def begin(self, ticket: Ticket) -> None:
        await self._writer.write((BEGIN, (ticket.attempts, ticket.id)))

    async def settle(self, job_id: str, outcome: JobOutcome) -> None:
        row = (outcome.status, outcome.attempts, dump_outcome(outcome), job_id)
        await self._writer.write((SETTLE, row), (DETACH, (job_id,)))

    async def forget(self, job_ids: Sequence[str]) -> None:
        await self._writer.write(*((FORGET, (job_id,)) for job_id in job_ids))

    async def store_block(self, client_id: str, workflow_hash: str, block: Block | None) -> None:
        if block is None:
            await self._writer.write((UNBLOCK, (client_id, workflow_hash)))
        else:
            until = block.blocked_until and block.blocked_until.isoformat()
            await self._writer.write((BLOCK, (client_id, workflow_hash, block.failure_count, until)))

    async def close(self) -> None:
        await self._writer.close()

    def _connect(self) -> sqlite3.Connection:
        try:
            # Transactions are started explicitly. The writer uses the connection in one thread at a time.
            return sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise ConfigurationError(f"The queue {self._path} cannot be opened: {error}.") from None

    def _prepare(self, connection: sqlite3.Connection) -> StoredJobs:
        try:
            # SQLite holds this lock until the connection is closed or the process exits.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("COMMIT")
            self._check_schema(connection)
            connection.execute(RECOVER)
            return _read(connection)
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise Conflict(f"The queue {self._path} is in use by another pool.") from None
            raise ConfigurationError(f"The queue {self._path} cannot be used: {error}.") from None
        except sqlite3.DatabaseError as error:
            raise ConfigurationError(f"{self._path} is not a ComfyRelay queue: {error}.") from None

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if (application, version, tables) == (0, 0, 0):
            connection.executescript(f"BEGIN; {CREATE_JOBS} {CREATE_BLOCKS} {MARK} COMMIT;")
            return
        if application != APPLICATION_ID:
            raise ConfigurationError(f"{self._path} is the database of another program, not a ComfyRelay queue.")
        if version == 1:
            connection.executescript(f"BEGIN; {CREATE_BLOCKS} {MARK} COMMIT;")
        elif version != SCHEMA_VERSION:
            raise ConfigurationError(
                f"The queue {self._path} has version {version}; this ComfyRelay reads version {SCHEMA_VERSION}."
            )


def _read(connection: sqlite3.Connection) -> StoredJobs:
    contents: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
    for job_id, position, content in connection.execute(ALL_ATTACHMENTS):
        contents[job_id][position] = content
    waiting: list[Ticket] = []
    finished: list[tuple[Ticket, JobOutcome]] = []
    for job_id, sequence, state, attempts, text, graph, outcome in connection.execute(ALL_JOBS):
        ticket = load_ticket(
            text,
            job_id=job_id,
            sequence=sequence,
            attempts=attempts,
            graph=graph or b"",
            contents=contents.pop(job_id, {}),
        )
        if outcome is None:
            waiting.append(ticket)
        else:
            finished.append((ticket, load_outcome(outcome, status=PoolJobStatus(state), attempts=attempts)))
    finished.sort(key=lambda pair: pair[1].finished_at)
    blocks = {
        (client_id, workflow_hash): Block(failure_count=count, blocked_until=until and datetime.fromisoformat(until))
        for client_id, workflow_hash, count, until in connection.execute(ALL_BLOCKS)
    }
    return StoredJobs(waiting=tuple(waiting), finished=tuple(finished), blocks=blocks)
