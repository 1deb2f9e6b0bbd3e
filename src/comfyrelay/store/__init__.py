"""SQL: table definitions, migrations, and named statements that run in the caller's transaction."""
