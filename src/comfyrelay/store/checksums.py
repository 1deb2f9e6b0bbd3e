"""Checksums of migrations, so that a database is refused if one of them has changed since it ran there."""

import ast
import hashlib
from pathlib import Path

# Parsing the migrations would take longer than all other checks at startup. A test compares these with the files.
CHECKSUMS = {
    "central_0001": "89de3b925d1ff90afd205f621abf3fed099c63b96fd40ec853fd5e3bbcae86ad",
    "tenant_0001": "9798068046318a28fe61f4db81d68b0bcf0cbbeef9878a25c6fe60cd44303767",
}


def checksum(path: Path) -> str:
    """Return the checksum of a migration's code, without its comments, docstrings, imports and formatting."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return hashlib.sha256(repr(_shape(tree)).encode()).hexdigest()


def _shape(value: object) -> object:
    """Return the syntax tree as tuples. Empty fields are left out, because new versions of Python add some."""
    if isinstance(value, list):
        return [_shape(item) for item in value if not _is_without_effect(item)]
    if isinstance(value, ast.AST):
        fields = [(name, _shape(field)) for name, field in ast.iter_fields(value) if field not in (None, [])]
        return (type(value).__name__, *fields)
    return value


def _is_without_effect(node: object) -> bool:
    """Whether a statement is a string or an import. Imports are ignored because imported modules may move."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom)
