"""Read positions of the consumers of a table."""

from sqlalchemy import select

from comfyrelay.store.central.tables.autoscaling import cursors
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import insert_into


async def lock(tx: Tx, name: str) -> int:
    """Return the position (initially 0), locked until the transaction ends."""
    await tx.execute(insert_into(tx.dialect, cursors).values(name=name, position=0).on_conflict_do_nothing())
    query = select(cursors.c.position).where(cursors.c.name == name).with_for_update()
    return int((await tx.execute(query)).scalar_one())


async def position(tx: Tx, name: str) -> int | None:
    found: int | None = await tx.scalar(select(cursors.c.position).where(cursors.c.name == name))
    return found


async def move(tx: Tx, name: str, position: int) -> None:
    query = insert_into(tx.dialect, cursors).values(name=name, position=position)
    await tx.execute(query.on_conflict_do_update(index_elements=["name"], set_={"position": position}))
