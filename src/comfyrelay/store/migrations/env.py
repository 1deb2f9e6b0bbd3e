"""Alembic's entry point for both schemas. `migrate.py` passes the connection and the table definitions."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes["metadata"],
    transactional_ddl=True,
)
context.run_migrations()
