"""SQL, and nothing else: table definitions, migrations, and named statements over a transaction that is handed in."""
