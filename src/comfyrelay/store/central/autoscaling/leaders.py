"""Leader election among several processes."""

from functools import cache

from sqlalchemy import Float, Text, bindparam, case, literal, select, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.autoscaling.machines import Leader
from comfyrelay.store.central.tables.autoscaling import leaders
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import insert_into
from comfyrelay.store.types import relay_now

_LEADER = [leaders.c[name] for name in Leader.__dataclass_fields__]


async def claim(tx: Tx, name: str, holder: str, *, seconds: float) -> Leader | None:
    """Become or remain the leader for this many seconds; return `None` if another process leads."""
    rows = await tx.fetch(_claim, {"leader": name, "by": holder, "for_seconds": seconds})
    return Leader(**rows[0]._mapping) if rows else None


@cache
def _claim(dialect: str) -> Executable:
    until = relay_now(bindparam("for_seconds", type_=Float()))
    query = insert_into(dialect, leaders).values(
        name=bindparam("leader", type_=Text()), holder=bindparam("by", type_=Text()), term=1, expires_at=until
    )
    is_own = leaders.c.holder == query.excluded.holder
    is_expired = leaders.c.expires_at <= relay_now()
    # After its term has expired, a process gets a new term, even if no other process led in between.
    term = leaders.c.term + case((is_expired, literal(1)), else_=literal(0))
    changed = {"holder": query.excluded.holder, "term": term, "expires_at": query.excluded.expires_at}
    query = query.on_conflict_do_update(index_elements=["name"], set_=changed, where=is_own | is_expired)
    return query.returning(*_LEADER)


async def holds(tx: Tx, leader: Leader) -> bool:
    """Return whether this term is current. No other term can begin until the transaction ends."""
    query = select(leaders.c.term).where(
        leaders.c.name == leader.name, leaders.c.term == leader.term, leaders.c.expires_at > relay_now()
    )
    return await tx.exists(query.with_for_update())


async def resign(tx: Tx, name: str, holder: str) -> None:
    query = update(leaders).where(leaders.c.name == name, leaders.c.holder == holder)
    await tx.execute(query.values(expires_at=relay_now()))


async def current(tx: Tx, name: str) -> Leader | None:
    query = select(*_LEADER).where(leaders.c.name == name, leaders.c.expires_at > relay_now())
    return await tx.one_or_none(Leader, query)
