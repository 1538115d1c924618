"""Checkpoints of other programs to this project's models; one system a file, one registry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taming.interop import compvis_transformer, compvis_vqgan, llamagen_gpt, llamagen_tokenizer
from taming.interop.weights import Imported
from taming.runtime.errors import UserError
from taming.serialization import read_foreign_checkpoint
from taming.serialization.foreign import printable_names

__all__ = ["SOURCES", "Imported", "Source", "import_checkpoint"]


@dataclass(frozen=True)
class Source:
    """A kind of checkpoint of another program."""

    converter: Callable[..., Imported]  # takes the content and the other program's arguments
    published: Mapping[str, Mapping[str, Any]]  # arguments of models by their authors' names
    settings: tuple[str, ...] = ()  # what else `converter` takes, by keyword, all optional

    def convert(self, content: Any, config: Mapping[str, Any], **settings: Any) -> Imported:
        """Converts the content of a checkpoint, whatever its config may hold."""
        try:
            return self.converter(content, config, **settings)
        except UserError:
            raise
        except Exception as error:  # whatever arguments of other types or sizes lead to
            what = f"lacks {error}" if isinstance(error, KeyError) else f"is wrong ({error})"
            raise UserError(
                f"the config {what}: give the one the checkpoint was trained with."
            ) from error


SOURCES: dict[str, Source] = {
    "compvis_vqgan": Source(compvis_vqgan.convert, compvis_vqgan.PUBLISHED),
    "compvis_transformer": Source(
        compvis_transformer.convert, compvis_transformer.PUBLISHED, ("num_classes",)
    ),
    "llamagen_tokenizer": Source(llamagen_tokenizer.convert, llamagen_tokenizer.PUBLISHED),
    "llamagen_gpt": Source(llamagen_gpt.convert, llamagen_gpt.PUBLISHED, ("tokenizer",)),
}


def import_checkpoint(
    source: str, checkpoint: str | Path, config: Mapping[str, Any] | str, **settings: Any
) -> Imported:
    """Converts a checkpoint of another program to a model of this one; runs nothing in the file.

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
    if source not in SOURCES:
        raise UserError(f"source {source!r} is unknown; known: {', '.join(SOURCES)}.")
    found = SOURCES[source]
    for name in set(settings) - set(found.settings):
        takers = [other for other, it in SOURCES.items() if name in it.settings]
        raise UserError(f"{source} takes no {name}; it is for {', '.join(takers)}: leave it out.")
    if isinstance(config, str):
        if config not in found.published:
            raise UserError(
                f"config={config} is neither a file nor a published size of {source}; the sizes: "
                f"{', '.join(found.published)}."
            )
        config = found.published[config]
    content, not_built = read_foreign_checkpoint(checkpoint)
    try:
        imported = found.convert(content, config, **settings)
    except UserError as error:
        raise UserError(f"{checkpoint} is not imported: {error}") from error
    if not_built:
        imported.notes.append(f"objects in the file, not built: {printable_names(not_built)}")
    return imported
