"""Normalize the definitions of indexes and conditions, so that equal definitions have equal texts.

PostgreSQL prints conditions with its own operators, casts and parentheses. Python's parser removes the parentheses that
do not matter, because its operators bind in the same order as in SQL. A condition that it cannot parse is
compared as text, so that a difference is never missed.
"""

import ast
import re
from functools import cache

_QUOTED = re.compile(r"('(?:[^']|'')*')")
_INDEX = re.compile(r"CREATE (UNIQUE )?INDEX .*? ON .*?(?: USING (\w+) ?)?\(", re.DOTALL)
# Storage parameters, which operators may tune.
_PARAMETERS = re.compile(r" WITH \([^)]*\)")
# How PostgreSQL prints `IN` and `LIKE`.
_POSTGRES = (
    (re.compile(r"(?<=')::[a-z ]+(?<! )"), ""),
    (re.compile(r"= ANY \(ARRAY\[([^]]*)\]\)"), r"IN (\1)"),
    (re.compile(r"<> ALL \(ARRAY\[([^]]*)\]\)"), r"NOT IN (\1)"),
    (re.compile(r"!~~"), "NOT LIKE"),
    (re.compile(r"~~"), "LIKE"),
)
# Operators of SQL and Python, with the same precedence, or with a higher one for `LIKE`.
_OPERATORS = {
    "NOT LIKE": "//",
    "LIKE": "@",
    "IS NOT": "is not",
    "IS": "is",
    "NOT IN": "not in",
    "IN": "in",
    "NOT": "not",
    "AND": "and",
    "OR": "or",
    "NULL": "None",
    "<>": "!=",
    "=": "==",
}
_TO_PYTHON = re.compile("|".join(rf"(?<![\w<>!]){re.escape(name)}(?!\w)" for name in _OPERATORS), re.IGNORECASE)
_PYTHON = {word: name for name, word in _OPERATORS.items()}
_TO_SQL = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in _PYTHON))


@cache
def condition(sql: str) -> str:
    """Return a condition with PostgreSQL's spelling replaced and without unneeded parentheses."""
    plain = _spaced(sql)
    for pattern, replacement in _POSTGRES:
        plain = pattern.sub(replacement, plain)
    parts = _QUOTED.split(plain)
    parts[::2] = [_TO_PYTHON.sub(lambda found: _OPERATORS[found[0].upper()], part) for part in parts[::2]]
    parts[1::2] = [repr(text[1:-1].replace("''", "'")) for text in parts[1::2]]
    try:
        parsed = ast.parse("".join(parts).strip(), mode="eval")
    except SyntaxError:
        return plain
    parts = _QUOTED.split(ast.unparse(parsed))
    parts[::2] = [_TO_SQL.sub(lambda found: _PYTHON[found[0]], part) for part in parts[::2]]
    return "".join(parts)


def check(definition: str) -> str:
    """Return the condition of `CHECK (…)`, and what follows it, such as `NOT VALID`."""
    inside, rest = in_parentheses(definition, definition.index("(") + 1)
    return f"{condition(inside)} {_spaced(rest)}".strip()


def index(definition: str) -> str:
    """Return everything except the names of an index and its table."""
    start = _INDEX.match(definition)
    if start is None:
        return _spaced(definition)
    columns, rest = in_parentheses(definition, start.end())
    options, _, where = _PARAMETERS.sub("", rest).partition(" WHERE ")
    unique = "unique " if start[1] else ""
    method = "" if start[2] in {None, "btree"} else f" using {start[2]}"
    only = f" where {condition(where)}" if where else ""
    return f"{unique}on ({_spaced(columns)}){method}{_spaced(options)}{only}"


def in_parentheses(sql: str, start: int) -> tuple[str, str]:
    """Return the text from `start` to the matching parenthesis, and the text after it."""
    depth = 1
    for place in range(start, len(sql)):
        depth += {"(": 1, ")": -1}.get(sql[place], 0)
        if depth == 0:
            return sql[start:place], sql[place + 1 :]
    return sql[start:], ""


def _spaced(sql: str) -> str:
    """Return SQL with single spaces, and without the quotes of names and the default order."""
    parts = _QUOTED.split(sql)
    parts[::2] = [re.sub(r"\s+", " ", part).replace('"', "").replace(" ASC", "") for part in parts[::2]]
    return "".join(parts).strip()
