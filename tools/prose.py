"""Check the English of the project: count banned phrases in comments, docstrings, messages, Markdown and UI texts.

Python and Markdown may have a few in a thousand words; README, messages and UI texts may have none.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAX_PER_THOUSAND_WORDS = 0.5
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")
_CODE = re.compile(r"`[^`\n]*`")
_FENCED = re.compile(r"^```.*?^```", re.M | re.S)
_TS_COMMENT = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.S)
_TS_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`')
_SENTENCE_WORDS = 3


@dataclass(frozen=True)
class Prose:
    path: str
    line: int
    text: str
    is_strict: bool
    """Whether a single banned phrase fails the check."""


@dataclass(frozen=True)
class Hit:
    prose: Prose
    line: int
    phrase: str
    instead: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="only these files or folders, with every hit printed")
    options = parser.parse_args()
    texts = [each for path in tracked(options.paths) for each in prose_of(path)]
    words = sum(len(_WORD.findall(text.text)) for text in texts)
    hits = [hit for text in texts for hit in hits_in(text)]
    strict = [hit for hit in hits if hit.prose.is_strict]
    rate = 1000 * len(hits) / max(words, 1)
    is_too_many = rate > MAX_PER_THOUSAND_WORDS
    for hit in hits if options.paths or is_too_many else strict:
        print(f"{hit.prose.path}:{hit.line}: “{hit.phrase}”: {hit.instead}")
    print(f"{len(hits)} phrases in {words} words, {rate:.2f} per thousand; {len(strict)} where none is allowed")
    return int(is_too_many or bool(strict))


def tracked(only: list[str]) -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *only],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.splitlines():
        if (path := ROOT / name).exists():
            yield path


def prose_of(path: Path) -> Iterator[Prose]:
    name = path.relative_to(ROOT).as_posix()
    match path.suffix:
        case ".py" if not name.endswith("_pb2.py"):
            yield from python_prose(name, path.read_text("utf-8"))
        case ".md":
            text = _FENCED.sub(lambda fenced: "\n" * fenced[0].count("\n"), path.read_text("utf-8"))
            yield Prose(name, 1, _CODE.sub("", text), is_strict=name == "README.md")
        case ".ts" | ".tsx" if name.startswith("ui/src/") and ".test." not in name:
            yield from typescript_prose(name, path.read_text("utf-8"))


def python_prose(name: str, source: str) -> Iterator[Prose]:
    is_product = name.startswith("src/")
    docstrings = set(_docstring_lines(ast.parse(source)))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            yield Prose(name, line, _CODE.sub("", token.string), is_strict=False)
        elif token.type in _STRINGS:
            text = _CODE.sub("", token.string)
            if line in docstrings:
                yield Prose(name, line, text, is_strict=False)
            elif is_product and len(_WORD.findall(text)) > _SENTENCE_WORDS and not _looks_like_sql(text):
                yield Prose(name, line, text, is_strict=True)


# starting with Python 3.12, f-strings have their own tokens
_STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno


def _looks_like_sql(text: str) -> bool:
    return bool(re.search(r"\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|WITH)\b", text))


def typescript_prose(name: str, source: str) -> Iterator[Prose]:
    def at(position: int) -> int:
        return source.count("\n", 0, position) + 1

    without_comments = source
    for comment in _TS_COMMENT.finditer(source):
        yield Prose(name, at(comment.start()), comment[0], is_strict=False)
        blank = re.sub(r"[^\n]", " ", comment[0])
        without_comments = without_comments[: comment.start()] + blank + without_comments[comment.end() :]
    for literal in _TS_STRING.finditer(without_comments):
        if len(_WORD.findall(literal[0])) > _SENTENCE_WORDS:
            yield Prose(name, at(literal.start()), literal[0], is_strict=True)


def phrases() -> list[tuple[re.Pattern[str], str]]:
    listed = tomllib.loads((Path(__file__).with_name("phrases.toml")).read_text("utf-8"))["phrase"]
    return [(re.compile(each["pattern"], re.IGNORECASE), each["instead"]) for each in listed]


_PHRASES = phrases()


def hits_in(prose: Prose) -> Iterator[Hit]:
    for offset, line in enumerate(prose.text.splitlines()):
        for pattern, instead in _PHRASES:
            for found in pattern.finditer(line):
                yield Hit(prose, prose.line + offset, found[0], instead)


if __name__ == "__main__":
    sys.exit(main())
