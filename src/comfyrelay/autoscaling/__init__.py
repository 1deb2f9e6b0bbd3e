"""Machines for workers: who makes them, and the loop that decides how many there should be."""
