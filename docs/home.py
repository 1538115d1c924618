"""The site's first page is the README: a hook of MkDocs."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

__all__ = ["on_files"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README as index.md, its links as seen from the folder of the pages."""
    readme = Path(config.config_file_path).with_name("README.md").read_text("utf-8")
    files.append(File.generated(config, "index.md", content=readme.replace("](docs/", "](")))
    return files
