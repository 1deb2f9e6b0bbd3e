"""The parts of a desk, which `desk.desk` assembles."""
