"""Use cases. Transactions begin and end only here."""
