"""Rows as the rest of the system knows them. `store` reads and writes them; everybody may hold one."""
