"""A MkDocs hook: the README and CONTRIBUTING.md become pages of the site."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

__all__ = ["on_files"]

PAGES = {"index.md": "README.md", "contributing.md": ".github/CONTRIBUTING.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds both pages, with links as seen from the folder of the other pages."""
    root = Path(config.config_file_path).parent
    for page, source in PAGES.items():
        text = (root / source).read_text("utf-8")
        text = (
            text.replace("](docs/", "](")
            .replace("](../README.md", "](index.md")
            .replace(f"]({PAGES['contributing.md']})", "](contributing.md)")
        )
        files.append(File.generated(config, page, content=text.replace("](../docs/", "](")))
    return files
