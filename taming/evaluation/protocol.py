"""The contract of an evaluation, and what to say beside its numbers."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from taming.data import ImageDataset
from taming.evaluation import ClassifierTraining, contract_digest, image_sets
from taming.evaluation.bootstrap import FEW_IMAGES
from taming.evaluation.real_images import RealImages
from taming.generation import ImageGenerator, SamplingOptions
from taming.runtime.errors import join_names
from taming.runtime.versions import versions
from taming.tokenizer import VQGAN

__all__ = ["evaluation_contract", "evaluation_notes"]

INTERPOLATIONS = {"enlarge": "nearest", "none": "none"}  # by the transform's way to resize


def evaluation_contract(
    real: RealImages,
    subject: str,
    subject_digest: str,
    *,
    num_samples: int | None,
    training: ClassifierTraining,
    lpips: str | None,
    sample_sizes: Collection[tuple[int, int]] = (),
) -> dict[str, Any]:
    """Returns all that must be equal for two evaluations to be comparable, and what was evaluated.

    Published distances differ by the choice of reference images, their number, and how they are
    resized, more than by the models (Parmar et al. 2022, "On Aliased Resizing and Surprising
    Subtleties in GAN Evaluation"). Numbers of different contracts do not belong in one table. It is
    known on the first process only.
    """
    transform, features = real.data.transform, real.judges.features
    classifier = real.judges.classifier
    contract = {
        "reference": real.data.val_dataset.images.description,
        "reference_digest": real.val.digest,  # of the pixels, whatever order, names and place
        "num_reference": real.val.num_images,
        # whose features are compared
        "num_training_images": 0 if real.train is None else real.train.num_images,
        "num_samples": num_samples,  # of each row; None: of a tokenizer
        "resolution": list(real.data.resolution),
        "resize": f"{transform.resize}, pad {transform.pad}" if transform.pad else transform.resize,
        "crop": "none" if transform.crop == "none" else "center",  # validation is not augmented
        "interpolation": INTERPOLATIONS.get(transform.resize, "Lanczos, antialiased"),
        "quantisation": "8 bit for features and classifiers; none for PSNR, SSIM, L1, LPIPS",
        "features": None if features is None else features.description,
        "features_digest": None if features is None else features.digest,
        "lpips": lpips,
        "classifier_digest": None if classifier is None else classifier.to_saved().fingerprint(),
        # of the one that is trained on samples
        "classifier_training": None if None in (classifier, num_samples) else asdict(training),
        "seed": real.judges.seed,  # of samples, choice of images, classifiers and intervals
        "subject": subject,  # the checkpoint, or the images that were measured
        "subject_digest": subject_digest,
        "code": versions(),
    }
    if resized := sorted({*sample_sizes} - {real.data.resolution}):
        contract["samples_resized_from"] = join_names([f"{h}×{w}" for h, w in resized])
    return {"digest": contract_digest(contract), **contract}


def evaluation_notes(
    subject: ImageGenerator | VQGAN | ImageDataset,
    numbers: dict[str, Any],
    real: RealImages,
    guided: Sequence[SamplingOptions],
) -> list[str]:
    """Says what was not measured and why, and which numbers to take with care."""
    notes = []
    if isinstance(subject, ImageGenerator):
        strongest = max((one.guidance for one in guided), key=lambda guidance: guidance.scale)
        notes += [note[0].upper() + note[1:] for note in strongest.notes(subject.num_tokens)]
        if subject.conditioning.num_classes is None:
            notes.append("The generator has no classes, so no classifier can agree with it.")
    sets = image_sets(numbers)
    for name, row in sets.items():
        if "num_not_finite" in row:
            notes.append(
                f"{row['num_not_finite']:,} of {row['num_images']:,} images are not finite (NaN), "
                f"so nothing was measured of them: {name}."
            )
    fewest = min(row["num_images"] for row in sets.values())
    if fewest < FEW_IMAGES:
        notes.append(
            f"Caution: with {fewest:,} images all numbers are rough; distances and precision mean "
            "little below some hundreds. Give more before comparing anything."
        )
    if real.judges.features is None:
        return [*notes, "No Fréchet distance was measured: it needs frechet.weights=FILE."]
    return notes + real.judges.features.notes(fewest)
