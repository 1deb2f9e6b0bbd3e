"""Ids of workers, which operators choose. Workers import this without the packages of a server."""

# Last parts of the routes of a worker. The part of the path before is the worker's id.
WORKER_ACTIONS = frozenset({"approve", "audit-logs", "drain", "logs", "revoke", "rotate-token", "unblock", "undrain"})


def worker_id_problem(worker_id: str) -> str | None:
    """Explain why a worker cannot have this id, which is part of URLs; `None` if it can."""
    if not worker_id.isprintable():
        return "A worker id must not contain control or invisible characters."
    parts = worker_id.split("/")
    # Browsers drop the parts `.` and `..`, and proxies drop empty ones.
    if not all(part.strip(". ") for part in parts):
        return "A worker id must not be empty or consist of dots, and neither must a part between slashes. Use gpu-1."
    if len(parts) > 1 and parts[-1] in WORKER_ACTIONS:
        return f"A worker id must not end with /{parts[-1]}, which is an action of the console."
    return None
