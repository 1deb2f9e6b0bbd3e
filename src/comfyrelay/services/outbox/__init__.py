"""Steps that cross from one database to the other: delivered at once, recovered after a crash, applied once."""
