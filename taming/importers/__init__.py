"""Checkpoints of other programs to this project's models; one system a file, one registry."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taming.errors import UserError
from taming.importers.compvis_transformer import COMPVIS_TRANSFORMER
from taming.importers.compvis_vqgan import COMPVIS_VQGAN
from taming.importers.interface import Imported, Source
from taming.importers.llamagen_gpt import LLAMAGEN_GPT
from taming.importers.llamagen_tokenizer import LLAMAGEN_TOKENIZER
from taming.serialization import read_foreign_checkpoint
from taming.serialization.foreign_names import shown_names

__all__ = [
    "SOURCES",
    "Imported",
    "Source",
    "check_settings",
    "find_source",
    "import_checkpoint",
]

SOURCES: dict[str, Source] = {
    "compvis_vqgan": COMPVIS_VQGAN,
    "compvis_transformer": COMPVIS_TRANSFORMER,
    "llamagen_tokenizer": LLAMAGEN_TOKENIZER,
    "llamagen_gpt": LLAMAGEN_GPT,
}


def find_source(name: str) -> Source:
    """The source of this name.

    Raises:
        UserError: if there is none, naming those there are.
    """
    if name not in SOURCES:
        raise UserError(f"source {name!r} is unknown; known: {', '.join(SOURCES)}.")
    return SOURCES[name]


def check_settings(source: str, settings: Mapping[str, Any]) -> None:
    """Checks that a source takes these settings.

    Raises:
        UserError: if it does not, naming the sources that do.
    """
    for name in settings:
        if name not in find_source(source).settings:
            takers = [other for other, it in SOURCES.items() if name in it.settings]
            whose = f"; it is for {', '.join(takers)}" if takers else ""
            raise UserError(f"{source} takes no {name}{whose}: leave it out.")


def import_checkpoint(
    source: str, checkpoint: str | Path, config: Mapping[str, Any] | str, **settings: Any
) -> Imported:
    """Reads a checkpoint of another program as a model of this one; nothing in the file is run.

    Args:
        source: a name in `SOURCES`.
        checkpoint: the file, as `torch.save` wrote it.
        config: the other program's arguments, as in its own configuration file, or the name of a
            published size. What is missing takes the other program's default.
        **settings: what the source takes besides (see `Source.settings`).

    Raises:
        MissingPathError: if the checkpoint does not exist.
        UserError: if source, size or setting are unknown, the file is damaged, or it and the
            configuration do not fit each other.
    """
    found = find_source(source)
    check_settings(source, settings)
    if isinstance(config, str):
        if config not in found.published:
            raise UserError(
                f"config={config} is neither a file nor a published size of {source}; the sizes: "
                f"{', '.join(found.published)}."
            )
        config = found.published[config]
    foreign = read_foreign_checkpoint(checkpoint)
    imported = found.convert(foreign.content, config, str(checkpoint), **settings)
    if foreign.not_built:
        imported.notes.append(f"objects in the file, not built: {shown_names(foreign.not_built)}")
    return imported
