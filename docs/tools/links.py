"""MkDocs hook: publish the pages outside `docs/`, and make links between repository files work on the site.

Pages link to each other by their paths in the repository, so that they also work on GitHub. The site has no `docs/`
level: every link is rewritten to the path that its target has there.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "ui/README.md")
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")
_ALL_DECISIONS = "adr/0*.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand the decisions in the navigation to one entry for each file."""
    decisions = sorted(Path(config.docs_dir).glob(_ALL_DECISIONS))
    config.nav = _expand(config.nav, [f"adr/{each.name}" for each in decisions])
    return config


def _expand(nav: object, decisions: list[str]) -> object:
    if isinstance(nav, dict):
        return {title: _expand(each, decisions) for title, each in nav.items()}
    if isinstance(nav, list):
        return [
            found for each in nav for found in (decisions if each == _ALL_DECISIONS else [_expand(each, decisions)])
        ]
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in OUTSIDE:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    site_path = page.file.src_uri
    folder = posixpath.dirname(site_path if site_path in OUTSIDE else f"docs/{site_path}")

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1])).removeprefix("docs/")
        return f"]({posixpath.relpath(target, posixpath.dirname(site_path) or '.')}"

    return _LINK.sub(rewrite, markdown)
