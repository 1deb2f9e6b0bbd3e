"""What every route is built on: who calls, what is at hand, how errors are answered."""
