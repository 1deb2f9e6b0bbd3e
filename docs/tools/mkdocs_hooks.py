"""MkDocs hook: add the pages outside `docs/` and the generated ones, and adapt pages that are written for GitHub.

- Pages link to each other by their paths in the repository. The site has no `docs/` level: every link is rewritten to
  the path that its target has there.
- GitHub nests text in a list item by 2 or 3 spaces, MkDocs only by 4.
"""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from docs.tools.acceptance_tests import render_requirements  # noqa: E402
from docs.tools.guarantee_index import render_index  # noqa: E402

OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "ui/README.md")
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")
_NESTED = re.compile(r" {2,3}(?=\S)")
_ALL_DECISIONS = "adr/0*.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand the decisions in the navigation to one entry for each file."""
    decisions = sorted(Path(config.docs_dir).glob(_ALL_DECISIONS))
    config.nav = _expand(config.nav, [f"adr/{page.name}" for page in decisions])
    return config


def _expand(nav: object, decisions: list[str]) -> object:
    if isinstance(nav, dict):
        return {title: _expand(entry, decisions) for title, entry in nav.items()}
    if isinstance(nav, list):
        return [
            page for entry in nav for page in (decisions if entry == _ALL_DECISIONS else [_expand(entry, decisions)])
        ]
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in OUTSIDE:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "reference/guarantee-index.md", content=render_index()))
    files.append(File.generated(config, "reference/acceptance-tests.md", content=render_requirements()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    site_path = page.file.src_uri
    folder = posixpath.dirname(site_path if site_path in OUTSIDE else f"docs/{site_path}")

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1])).removeprefix("docs/")
        return f"]({posixpath.relpath(target, posixpath.dirname(site_path) or '.')}"

    return "\n".join(_indent_nested(_LINK.sub(rewrite, markdown).splitlines()))


def _indent_nested(lines: list[str]) -> Iterator[str]:
    is_code, indent = False, ""
    for line in lines:
        is_fence = line.lstrip().startswith("```")
        if not is_code:
            nested = _NESTED.match(line)
            indent = " " * (4 - len(nested[0])) if nested else ""
        yield indent + line if line else line
        is_code ^= is_fence
