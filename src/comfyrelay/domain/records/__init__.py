"""Database rows as plain values. Only `store` reads and writes them."""
