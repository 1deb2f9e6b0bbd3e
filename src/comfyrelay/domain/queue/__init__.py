"""How a job travels: its states, whose turn it is, who may have it, how it ends."""
