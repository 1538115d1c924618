"""Reference files: feature statistics and images that other programs publish.

A distance to a reference file equals a published one only if both programs resize images in the
same way and use the same Inception weights. The files do not record either, so the program that
wrote them must be known. Parmar et al. 2022, "On Aliased Resizing and Surprising Subtleties in GAN
Evaluation".
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from taming.data import ImageDataset, ImageTransform, Part, PictureReader, open_samples
from taming.data.samples import read_array
from taming.evaluation.adm import adm_inception_score, adm_precision_and_recall
from taming.evaluation.distances import feature_statistics, frechet_distance
from taming.evaluation.features import (
    INCEPTION_WEIGHTS,
    TENSORFLOW_RESIZE,
    FeatureNetwork,
    file_digest,
)
from taming.evaluation.judges import JudgedImages
from taming.pictures import to_uint8
from taming.runtime.errors import MissingPathError, UserError, replacing, writing

__all__ = ["ReferenceComparison", "ReferenceFile", "ReferenceProgram", "Statistics",
    "check_statistics_file", "open_reference", "write_statistics"]  # fmt: skip

ReferenceProgram = Literal["adm", "clean_fid", "edm", "pytorch_fid", "torch_fidelity"]


class Preprocessing(NamedTuple):
    """What a distance depends on besides the images.

    Attributes:
        resize: how images are brought to the 299×299 of Inception.
        weights: the weights of Inception.
    """

    resize: str
    weights: str


# All networks are translations of one TensorFlow graph. torch-fidelity's and pytorch-fid's files of
# weights are equal. clean-fid's mode legacy_tensorflow is EDM's, legacy_pytorch is pytorch-fid's.
PREPROCESSING: dict[ReferenceProgram, Preprocessing] = {
    "adm": Preprocessing(TENSORFLOW_RESIZE, INCEPTION_WEIGHTS),
    "clean_fid": Preprocessing("bicubic, antialiased, before the network", INCEPTION_WEIGHTS),
    "edm": Preprocessing(TENSORFLOW_RESIZE, INCEPTION_WEIGHTS),
    "pytorch_fid": Preprocessing("bilinear as in PyTorch, not antialiased", INCEPTION_WEIGHTS),
    "torch_fidelity": Preprocessing(TENSORFLOW_RESIZE, INCEPTION_WEIGHTS),
}
NETWORK_FIELDS = ("description", "digest", "resize", "weights")  # in the files of this program
NUM_PUBLISHED_SAMPLES = 50_000
MAX_WRITTEN_IMAGES = 10_000  # as in ADM's files


class Statistics(NamedTuple):
    """Mean `(f,)` and covariance `(f f)` of features, in float64."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Self:
        """Computes them from features `(n f)`."""
        return cls(*feature_statistics(features))

    def frechet_distance(self, features: Tensor) -> float:
        """Returns the Fréchet distance of features `(n f)` to these statistics."""
        mean, covariance = feature_statistics(features)
        reference = self.mean.to(mean.device), self.covariance.to(mean.device)
        return frechet_distance(mean, reference[0], covariance, reference[1]).item()


@dataclass(frozen=True)
class ReferenceFile:
    """What a reference file contains.

    Attributes:
        path: the file.
        digest: its SHA-256, in hex.
        program: the program that wrote it; None if that is unknown, or if it is this program.
        statistics: of the features; None for images without statistics.
        spatial: statistics of the spatial features, for sFID.
        images: the images; None without any.
        network: the feature network, in files of this program.
    """

    path: Path
    digest: str
    program: ReferenceProgram | None
    statistics: Statistics | None
    spatial: Statistics | None = None
    images: ImageDataset | None = None
    network: Mapping[str, Any] | None = None

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing of the images; None if it is unknown."""
        if self.network is not None:
            return Preprocessing(self.network["resize"], self.network["weights"])
        return None if self.program is None else PREPROCESSING[self.program]

    @property
    def needs_spatial(self) -> bool:
        """Whether sFID to the file can be measured."""
        return self.spatial is not None or self.statistics is None

    def protocol(self, network: FeatureNetwork) -> dict[str, Any]:
        """Returns what the distances to the file depend on, for the evaluation protocol."""
        resize, weights = self.preprocessing or ("unknown", "unknown")
        return {
            "reference_file": str(self.path),
            "reference_file_digest": self.digest,
            "reference_file_program": self.program or ("unknown" if not self.network else "taming"),
            "reference_file_resize": resize,
            "reference_file_weights": weights,
            "reference_file_images": 0 if self.images is None else len(self.images),
            "features_resize": network.resize,
            "features_weights": network.weights,
        }

    def warnings(self, network: FeatureNetwork, resolution: Sequence[int]) -> list[str]:
        """Returns how the preprocessing of the file differs from the evaluation's."""
        if self.preprocessing is None:
            return [
                f"{self.path} does not say which program wrote it, so its resize and its Inception "
                "weights are unknown, and the distance may not equal published ones. Set "
                "reference_program."
            ]
        notes = []
        own = Preprocessing(network.resize, network.weights)._asdict()
        for name, value in self.preprocessing._asdict().items():
            if value != own[name]:
                notes.append(
                    f"The {name} of {self.path} and of this evaluation differ ({value}, and "
                    f"{own[name]}), so the distance to it does not equal a published one."
                )
        if self.images is not None and self.images.transform.size != tuple(resolution):
            height, width = self.images.transform.size
            notes.append(
                f"The images in {self.path} are {height}×{width}, and this evaluation's are "
                f"{resolution[0]}×{resolution[1]}. Distances between sizes are not comparable."
            )
        return notes


def open_reference(
    path: str | Path, network: FeatureNetwork | None, program: ReferenceProgram | None = None
) -> ReferenceFile:
    """Opens a reference file for a feature network, without executing anything in it.

    | program | file |
    |---|---|
    | EDM, clean-fid, pytorch-fid | `.npz` with `mu` and `sigma` |
    | torch-fidelity | `.pt` with a dictionary of `mu` and `sigma`, from its cache |
    | ADM | `.npz` with images in `arr_0`, and optionally `mu`, `sigma`, `mu_s` and `sigma_s` |
    | this one | see `write_statistics` |

    Args:
        path: the file.
        network: the feature network of the evaluation.
        program: the program that wrote it. None to recognise this program's, ADM's and
            torch-fidelity's files; the others look alike.

    Raises:
        MissingPathError: if the file does not exist.
        UserError: if it is damaged, has neither statistics nor images, or holds the features of
            another network.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise MissingPathError(f"{path} does not exist (looked from {Path.cwd()}).")
    written_network, images, has_images = None, None, False
    try:
        if path.suffix == ".pt":
            arrays = _read_pt(path)
        else:
            arrays = {name: read_array(path, name) for name in ("mu", "sigma", "mu_s", "sigma_s")}
            written_network = _written_network(path)
            with zipfile.ZipFile(path) as archive:
                has_images = "arr_0.npy" in archive.namelist()
    except (
        Exception
    ) as error:  # a damaged file makes pickle, zipfile and NumPy raise nearly anything
        raise UserError(f"{path} cannot be read as statistics of features: {error}.") from error
    if has_images:
        pictures = open_samples(path, PictureReader(3))
        assert pictures.sizes is not None
        transform = ImageTransform(resolution=pictures.sizes[0], resize="none", crop="none")
        images = ImageDataset(Part(pictures), transform, seed=0)
    statistics = _statistics(path, arrays, "mu", "sigma")
    spatial = _statistics(path, arrays, "mu_s", "sigma_s")
    if statistics is None and images is None:
        raise UserError(
            f"{path} has neither statistics (mu, sigma) nor images (arr_0). Pickles are not read."
        )
    if program is None and written_network is None:
        if path.suffix == ".pt":
            program = "torch_fidelity"
        elif has_images or spatial is not None:
            program = "adm"
    reference = ReferenceFile(
        path, file_digest(path), program, statistics, spatial, images, written_network
    )
    _check(reference, network)
    return reference


def _check(reference: ReferenceFile, network: FeatureNetwork | None) -> None:
    """Raises a `UserError` if a file holds the features of another network."""
    path = reference.path
    if network is None:
        raise UserError(
            f"reference={path} needs a feature network. Set frechet.weights, and for published "
            "files frechet.backbone=inception."
        )
    frechet = f"{network.description} (weights {network.digest[:8]})"
    if reference.network is not None:
        file_network = (
            f"{reference.network['description']} (weights {reference.network['digest'][:8]})"
        )
        if file_network != frechet:
            raise UserError(f"{path} has features of {file_network}, but frechet is {frechet}.")
    elif reference.program is not None and not network.is_inception:
        raise UserError(
            f"{path} has features of Inception, but frechet is {frechet}. Set "
            "frechet.backbone=inception."
        )
    if reference.statistics is not None:
        width = len(reference.statistics.mean)
        if width != network.num_features:
            raise UserError(
                f"{path} has statistics of {width} features, but {network.description} has "
                f"{network.num_features}. Published files need frechet.backbone=inception."
            )


def _read_pt(path: Path) -> dict[str, np.ndarray | None]:
    """Reads arrays that `torch.save` wrote; only NumPy's own classes are built."""
    reconstruct = np.empty(0).__reduce__()[0]  # the private function in pickles of arrays
    names: list[Any] = [np.ndarray, np.dtype]
    names += [type(np.dtype(name)) for name in ("float32", "float64")]
    names += [(reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    with torch.serialization.safe_globals(names):
        content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        raise ValueError("it has no dictionary")
    return {name: np.asarray(content[name]) for name in ("mu", "sigma") if name in content}


def _written_network(path: Path) -> dict[str, Any] | None:
    """Returns the feature network that `write_statistics` has noted in a file."""
    text = read_array(path, "network")
    if text is None or text.dtype.kind != "U" or text.ndim:
        return None
    network = json.loads(str(text))
    return {name: str(network[name]) for name in NETWORK_FIELDS}


def _statistics(
    path: Path, arrays: Mapping[str, np.ndarray | None], mean_name: str, covariance_name: str
) -> Statistics | None:
    mean, covariance = arrays.get(mean_name), arrays.get(covariance_name)
    if mean is None and covariance is None:
        return None
    shape = None if mean is None or mean.ndim != 1 else 2 * mean.shape
    for name, array in ((mean_name, mean), (covariance_name, covariance)):
        if array is None or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise UserError(f"{path}: {name} must be finite floating-point numbers.")
    if covariance is None or mean is None or covariance.shape != shape:
        raise UserError(f"{path}: {covariance_name} must have a row and a column per {mean_name}.")
    return Statistics(*(torch.from_numpy(x.astype(np.float64)) for x in (mean, covariance)))


def check_statistics_file(path: str | Path, network: FeatureNetwork | None) -> None:
    """Raises a `UserError` if `write_statistics` cannot write this file."""
    if Path(path).suffix not in (".npz", ".pt"):
        raise UserError(f"write_statistics={path} must end in .npz or .pt (for torch-fidelity).")
    if network is None:
        raise UserError("write_statistics needs a feature network. Set frechet.weights.")


def write_statistics(
    path: str | Path,
    judged: JudgedImages,
    network: FeatureNetwork,
    dataset: ImageDataset,
    numbers: Sequence[int],
) -> Path:
    """Writes a reference file that other programs read.

    A `.pt` file is for torch-fidelity's cache. An `.npz` file has `mu` and `sigma`, which EDM,
    clean-fid and pytorch-fid read. With Inception, it also has `mu_s`, `sigma_s` and up to 10,000
    images in `arr_0`, which ADM's evaluator needs. `network` describes the feature network in JSON.

    Args:
        path: the file, for which `check_statistics_file` passes.
        judged: the images, judged.
        network: the network of their features.
        dataset: where the images are.
        numbers: of the images in the data set.
    """
    path = Path(path).expanduser()
    assert judged.features is not None
    mean, covariance = (x.cpu().numpy() for x in Statistics.of(judged.features_on_device()))
    arrays: dict[str, Any] = {"mu": mean, "sigma": covariance}
    if path.suffix == ".npz":
        description = {name: getattr(network, name) for name in NETWORK_FIELDS}
        arrays["network"] = np.array(json.dumps(description))
        if judged.spatial is not None:
            spatial = Statistics.of(judged.spatial)
            arrays |= {"mu_s": spatial.mean.numpy(), "sigma_s": spatial.covariance.numpy()}
            step = -(-len(numbers) // MAX_WRITTEN_IMAGES)  # images may be sorted by class
            pictures = [to_uint8(dataset[i]["images"][None])[0] for i in numbers[::step]]
            arrays["arr_0"] = np.stack(pictures)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, "wb") as file:
            if path.suffix == ".npz":
                np.savez(file, **arrays)
            else:  # torch-fidelity writes these types
                torch.save({"mu": mean.astype(np.float32), "sigma": covariance}, file)
    return path


class ReferenceComparison:
    """Compares sets of judged images with a reference file.

    Args:
        reference: the file; `check` accepts the network.
        images: its images, judged; None without any.
        network: the feature network.
    """

    def __init__(
        self, reference: ReferenceFile, images: JudgedImages | None, network: FeatureNetwork
    ) -> None:
        self.images, self.network = images, network
        self.statistics, self.spatial = reference.statistics, reference.spatial
        if self.statistics is None:
            assert images is not None and images.features is not None
            self.statistics = Statistics.of(images.features_on_device())
            if images.spatial is not None:
                self.spatial = Statistics.of(images.spatial)

    def numbers(self, judged: JudgedImages, *, shuffle_seed: int | None = None) -> dict[str, float]:
        """Returns the numbers of a set of images; empty if they are not finite.

        `reference_fid` is the distance to the file, called `reference_frechet_distance` for other
        networks than Inception, and `reference_sfid` the one of spatial features. Reference images
        add `adm_precision` and `adm_recall`, and Inception `adm_inception_score`.

        Args:
            judged: the set.
            shuffle_seed: seed of the order of the images in the Inception Score; None for their
                own order, as in ADM's evaluator.
        """
        assert self.statistics is not None
        if judged.num_not_finite:
            return {}
        features = judged.features_on_device()
        name = "fid" if self.network.is_inception else "frechet_distance"
        numbers = {f"reference_{name}": self.statistics.frechet_distance(features)}
        if self.spatial is not None and judged.spatial is not None:
            spatial = judged.spatial.to(features.device)
            numbers["reference_sfid"] = self.spatial.frechet_distance(spatial)
        if self.images is not None:
            pair = adm_precision_and_recall(features, self.images.features_on_device())
            numbers |= dict(zip(("adm_precision", "adm_recall"), pair, strict=True))
        if self.images is not None and self.network.is_inception:
            if shuffle_seed is not None:
                features = features[np.random.default_rng(shuffle_seed).permutation(len(features))]
            numbers["adm_inception_score"] = adm_inception_score(self.network.logits(features))
        return numbers
