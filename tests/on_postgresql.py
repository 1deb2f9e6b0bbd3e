"""Which tests that run on both databases come to PostgreSQL with every change; the others do in `make long`.

All run on SQLite. On PostgreSQL run, in this order:

- whole files that are about what the two do differently: locks, plans, notifications, connections, migrations;
- every test that `docs/reference/guarantee-index.md` names, by itself or by its file, with the first of its cases;
- of each other group of tests, a class or a file, the first.

Crashes are chosen by the place where the process dies, in `tests/integration/crashes/cases.py`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

GUARANTEES = ROOT / "docs" / "reference" / "guarantee-index.md"
WHOLE = {
    "tests/integration/api/test_admin_accounts.py",
    "tests/integration/api/test_admin_dispatches.py",
    "tests/integration/api/test_admin_operations.py",
    "tests/integration/api/test_admin_overview.py",
    "tests/integration/api/test_admin_test_runs.py",
    "tests/integration/api/test_admin_workers.py",
    "tests/integration/api/test_worker_logs.py",
    "tests/integration/api/test_gallery.py",
    "tests/integration/api/test_slots.py",
    "tests/integration/api/test_outputs.py",
    "tests/integration/api/test_read_only_database.py",
    "tests/integration/queue/test_concurrency.py",
    "tests/integration/store/test_engine.py",
    "tests/integration/store/test_gallery_plans.py",
    "tests/integration/store/test_lost_connections.py",
    "tests/integration/queue/test_many_waiting_polls.py",
    "tests/integration/store/test_migrations.py",
    "tests/integration/store/test_query_plans.py",
    "tests/integration/queue/test_recovery.py",
    "tests/integration/queue/test_local_inputs.py",
    "tests/integration/store/test_upgrades.py",
    "tests/integration/queue/test_notify.py",
    "tests/integration/store/test_figure_plans.py",
    "tests/integration/autoscaling/test_history.py",
    "tests/integration/autoscaling/test_leadership.py",
    "tests/unit/test_settings.py",
}
CHOSEN = "tests/chaos/"
# The services beneath the API are held to what is guaranteed on both: of the API itself a sample is enough.
SAMPLED = "tests/api/"
_NAMED = re.compile(r"`(?P<file>tests/[\w/]+\.py)`(?: \((?P<tests>`\w+`(?:, `\w+`)*)\))?")


def guaranteed(text: str) -> dict[str, set[str]]:
    """The tests that a text names, by file; none where it names a file as a whole."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    whole = set()
    for each in _NAMED.finditer(text):
        if each["tests"] is None:
            whole.add(each["file"])
        else:
            found[each["file"]].update(re.findall(r"\w+", each["tests"]))
    return found | {file: set() for file in whole}


def left_for_later(items: list[pytest.Item], named: dict[str, set[str]]) -> Iterator[pytest.Item]:
    """Those that need not come to PostgreSQL with every change."""
    groups, tests = set(), set()
    for item in items:
        if not isinstance(item, pytest.Function) or not _is_on_postgresql(item):
            continue
        file = item.nodeid.partition("::")[0]
        if file.startswith(CHOSEN):
            continue
        is_first = item.parent not in groups
        groups.add(item.parent)
        if file in WHOLE or is_first:
            tests.add((item.parent, item.originalname))
            continue
        wanted = None if file.startswith(SAMPLED) else named.get(file)
        is_named = wanted is not None and (not wanted or item.originalname in wanted)
        if not is_named or (item.parent, item.originalname) in tests:
            yield item
        tests.add((item.parent, item.originalname))


def _is_on_postgresql(item: pytest.Function) -> bool:
    return hasattr(item, "callspec") and item.callspec.params.get("backend") == "postgresql"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    named = guaranteed(GUARANTEES.read_text("utf-8"))
    for item in left_for_later(items, named):
        item.add_marker(pytest.mark.long)
