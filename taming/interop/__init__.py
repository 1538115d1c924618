"""Importers: checkpoints of other programs become models of this one. One file per kind."""

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
    """One kind of foreign checkpoint.

    Attributes:
        converter: converts the content of a checkpoint and the other program's arguments.
        published: arguments of published models, by their authors' names.
        settings: optional keyword arguments of `converter`.
    """

    converter: Callable[..., Imported]
    published: Mapping[str, Mapping[str, Any]]
    settings: tuple[str, ...] = ()

    def convert(self, content: Any, config: Mapping[str, Any], **settings: Any) -> Imported:
        """Converts the content of a checkpoint; a wrong config raises a `UserError`."""
        try:
            return self.converter(content, config, **settings)
        except UserError:
            raise
        except Exception as error:  # arguments of wrong types or sizes can raise anything
            fault = f"lacks {error}" if isinstance(error, KeyError) else f"is wrong ({error})"
            raise UserError(
                f"the config {fault}. Give the config that the checkpoint was trained with."
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
    """Converts a foreign checkpoint to a model of this program without running code in the file.

    Args:
        source: a name in `SOURCES`.
        checkpoint: a file that `torch.save` wrote.
        config: the other program's arguments, as in its own configuration file, or the name of a
            published model. Missing arguments take the other program's defaults.
        **settings: see `Source.settings`.

    Raises:
        MissingPathError: if the checkpoint does not exist.
        UserError: if the source, the published name or a setting is unknown, if the file is
            damaged, or if its weights do not match the config.
    """
    if source not in SOURCES:
        raise UserError(f"source={source!r} is unknown. Choose one of {', '.join(SOURCES)}.")
    importer = SOURCES[source]
    for name in set(settings) - set(importer.settings):
        users = [other for other, entry in SOURCES.items() if name in entry.settings]
        raise UserError(f"{name} is a setting of {', '.join(users)}, not of {source}. Remove it.")
    if isinstance(config, str):
        if config not in importer.published:
            raise UserError(
                f"config={config} is neither a file nor a published model of {source}. Published "
                f"models: {', '.join(importer.published)}."
            )
        config = importer.published[config]
    content, replaced_names = read_foreign_checkpoint(checkpoint)
    try:
        imported = importer.convert(content, config, **settings)
    except UserError as error:
        raise UserError(f"{checkpoint} was not imported: {error}") from error
    if replaced_names:
        imported.notes.append(f"ignored objects: {printable_names(replaced_names)}")
    return imported
