"""The evaluation protocol: everything that affects a metric except the model.

The choice of reference images, their number, and how they are resized affect published distances
more than the models do (Parmar et al. 2022, "On Aliased Resizing and Surprising Subtleties
in GAN Evaluation"). Only numbers of one protocol belong in one table.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from taming.runtime.errors import join_names
from taming.runtime.nested import leaves
from taming.runtime.versions import versions

if TYPE_CHECKING:  # compare.py needs protocols without the data module, which is slow to import
    from taming.evaluation.real_images import RealImages

__all__ = ["evaluation_protocol", "protocol_differences", "protocol_digest"]

# they may differ within a table
NOT_COMPARED = ("subject", "subject_digest", "code", "digest", "part", "reference_file")
INTERPOLATIONS = {"enlarge": "nearest", "none": "none"}  # by the transform's `resize`


def evaluation_protocol(
    real: "RealImages",
    subject: str,
    subject_digest: str,
    *,
    num_samples: int | None,
    sample_sizes: Collection[tuple[int, int]] = (),
) -> dict[str, Any]:
    """Returns the protocol of an evaluation, its subject, and the digest that compares protocols.

    Args:
        real: the reference images and the judges. Only the first process knows their digests.
        subject: the checkpoint, or the path of the samples.
        subject_digest: digest of the weights, or of the samples' pixels.
        num_samples: samples per guidance scale; None for a tokenizer.
        sample_sizes: (height, width) of samples before they are resized.
    """
    transform, features = real.data.transform, real.judges.features
    classifier, training = real.judges.classifier, None
    if classifier is not None and num_samples is not None:
        training = asdict(real.options.classifier_training)
    protocol = {
        "reference": real.held_out_dataset.images.description,
        "part": real.part,
        "reference_digest": real.held_out.digest,
        "num_reference": real.held_out.num_images,
        "num_training_images": 0 if real.train is None else real.train.num_images,
        "num_samples": num_samples,
        "resolution": list(real.data.resolution),
        "resize": f"{transform.resize}, pad {transform.pad}" if transform.pad else transform.resize,
        "crop": "none" if transform.crop == "none" else "center",  # validation is not augmented
        "interpolation": INTERPOLATIONS.get(transform.resize, "Lanczos, antialiased"),
        "quantisation": "8 bit for features and classifiers; none for PSNR, SSIM, L1, LPIPS",
        "pairs": "different images only, in the kernel distance of reconstructions",
        "intervals": "95%: halves for Fréchet, U-statistic for kernel, normal for means, Wilson",
        "features": None if features is None else features.description,
        "features_digest": None if features is None else features.digest,
        "lpips": None if real.judges.lpips is None else real.judges.lpips.backbone,
        "classifier_digest": None if classifier is None else classifier.to_saved().fingerprint(),
        "classifier_training": training,
        "seed": real.judges.seed,
        "subject": subject,
        "subject_digest": subject_digest,
        "code": versions(),
    }
    if resized := sorted({*sample_sizes} - {real.data.resolution}):
        protocol["samples_resized_from"] = join_names([f"{h}×{w}" for h, w in resized])
    if real.reference is not None and features is not None:
        protocol |= real.reference.protocol(features)
    return {"digest": protocol_digest(protocol), **protocol}


def protocol_digest(protocol: Mapping[str, Any]) -> str:
    """Returns a hex digest that is equal for comparable evaluations.

    The reference counts by its pixels and not by its path.
    """
    compared = {name: x for name, x in _compared(protocol).items() if name != "reference"}
    return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:16]


def protocol_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Lists how the second of two saved protocols differs: `num_reference 500, not 10000`."""
    before, after = (dict(leaves(_compared(x), lists=False)) for x in (first, second))
    names = [name for name in before | after if before.get(name) != after.get(name)]
    if "reference_digest" not in names and "reference" in names:
        names.remove("reference")
    return [f"{name} {after.get(name)}, not {before.get(name)}" for name in names]


def _compared(protocol: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in protocol.items() if name not in NOT_COMPARED}
