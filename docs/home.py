"""A MkDocs hook: the README and CONTRIBUTING.md become pages of the site."""

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

__all__ = ["on_files", "on_page_markdown"]

PAGES = {"index.md": "README.md", "contributing.md": ".github/CONTRIBUTING.md"}
LINKS = {
    "](docs/": "](",
    "](../docs/": "](",
    "](../README.md": "](index.md",
    "](.github/CONTRIBUTING.md": "](contributing.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds both pages."""
    root = Path(config.config_file_path).parent
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(root / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrites links of the repository as links of the site."""
    for link, page in LINKS.items():
        markdown = markdown.replace(link, page)
    return markdown
