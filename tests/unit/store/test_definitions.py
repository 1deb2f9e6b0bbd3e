"""Definitions with the same meaning have the same normalized text, and others do not."""

import pytest

from comfyrelay.store.definitions import check, condition, index

SAME = [
    ("status IN ('a','b')", "(status = ANY (ARRAY['a'::text, 'b'::text]))"),
    ("status NOT IN ('a', 'b')", "(status <> ALL (ARRAY['a'::text, 'b'::text]))"),
    ("kind NOT LIKE 'JOB_%' OR job_id IS NOT NULL", "((kind !~~ 'JOB_%'::text) OR (job_id IS NOT NULL))"),
    ("kind LIKE 'a%'", "(kind ~~ 'a%'::text)"),
    ("a IS NULL OR b = 'x' AND c >= 1", "((a IS NULL) OR ((b = 'x'::text) AND (c >= 1)))"),
    ("(a IS NOT NULL) = (b IN ('x', 'y'))", "((a IS NOT NULL) = (b = ANY (ARRAY['x'::text, 'y'::text])))"),
    ("is_admin", "(is_admin)"),
    ("a = 1  AND\n b is null", "((a = 1) AND (b IS NULL))"),
    ("name = 'it''s'", "(name = 'it''s'::text)"),
]
OTHER = [
    ("status = 'queued'", "status <> 'queued'"),
    ("status IN ('a', 'b')", "status NOT IN ('a', 'b')"),
    ("status IN ('a', 'b')", "status IN ('a')"),
    ("a >= 1", "a > 1"),
    ("a >= 1", "a <= 1"),
    ("a IS NULL", "a IS NOT NULL"),
    ("a OR b AND c", "(a OR b) AND c"),
    ("NOT a OR b", "NOT (a OR b)"),
    ("kind LIKE 'a%'", "kind NOT LIKE 'a%'"),
    ("kind LIKE 'a%'", "kind = 'a%'"),
    ("name = 'it''s'", "name = 'its'"),
    ("name = 'A'", "name = 'a'"),
    ("name = 'a AND b'", "name = 'a and b'"),
    ("a = '1'", "(a)::text = '1'"),
    # not parsed
    ("a ->> 'x' = 'y'", "a ->> 'x' = 'z'"),
]


@pytest.mark.parametrize(("ours", "printed"), SAME)
def test_condition_equals_what_postgresql_prints(ours: str, printed: str) -> None:
    assert condition(ours) == condition(printed) == check(f"CHECK ({printed})")


@pytest.mark.parametrize(("first", "second"), OTHER)
def test_conditions_with_another_meaning_differ(first: str, second: str) -> None:
    assert condition(first) != condition(second)


def test_constraint_that_was_not_validated_differs() -> None:
    assert check("CHECK ((a > 1)) NOT VALID") != check("CHECK ((a > 1))")


def test_index_equals_what_postgresql_prints() -> None:
    ours = "CREATE UNIQUE INDEX ix ON jobs (a, \"end\", b DESC) WHERE status = 'queued'"
    printed = (
        'CREATE UNIQUE INDEX ix ON public.jobs USING btree (a, "end", b DESC) '
        "WITH (fillfactor='70') WHERE (status = 'queued'::text)"
    )
    assert index(ours) == index(printed) == "unique on (a, end, b DESC) where status = 'queued'"


@pytest.mark.parametrize(
    "other",
    [
        "CREATE UNIQUE INDEX ix ON jobs (a, b DESC)",
        "CREATE INDEX ix ON jobs (a, b)",
        "CREATE INDEX ix ON jobs (b DESC, a)",
        "CREATE INDEX ix ON jobs (a, b DESC NULLS LAST)",
        "CREATE INDEX ix ON jobs (a, lower(b) DESC)",
        "CREATE INDEX ix ON jobs USING hash (a, b DESC)",
        "CREATE INDEX ix ON jobs (a, b DESC) INCLUDE (c)",
        "CREATE INDEX ix ON jobs (a, b DESC) WHERE a = 1",
        'CREATE INDEX ix ON jobs (a COLLATE "C", b DESC)',
    ],
)
def test_indexes_with_another_meaning_differ(other: str) -> None:
    assert index(other) != index("CREATE INDEX ix ON jobs (a, b DESC)")
