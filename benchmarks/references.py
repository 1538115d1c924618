"""Computes distances to reference files with this program and others, on the same features.

    python -m benchmarks.references

The files are synthetic, in the formats of EDM, clean-fid, torch-fidelity and ADM. A random network
stands in for Inception, whose weights are a download. clean-fid runs in the environment of
`--peer-python`; without it, its rows are missing. The command takes some minutes.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_isc import isc_features_to_metric
from torch_fidelity.metric_prc import prc_features_to_metric

from benchmarks import adm_formulas
from benchmarks.compare import ROOT
from benchmarks.table import aligned
from taming.evaluation.features import INCEPTION_WEIGHTS, TENSORFLOW_RESIZE, FeatureNetwork
from taming.evaluation.judges import JudgedImages, Judges
from taming.evaluation.reference import ReferenceComparison, open_reference, write_statistics

SIDE = 8  # pixels
SPLIT = 5000  # images of a split of ADM's Inception Score


class RandomNetwork(FeatureNetwork):
    """Features, spatial features and logits of Inception's sizes, from random weights."""

    description, digest = "random network", "0" * 64
    resize, weights = TENSORFLOW_RESIZE, INCEPTION_WEIGHTS
    is_inception = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_features = width
        random = torch.Generator().manual_seed(0)
        self.weight = torch.randn(3 * SIDE**2, 2 * width - 25, generator=random) / (2 * SIDE)
        self.classes = torch.randn(width, 1008, generator=random) * 8 / width**0.5

    def forward(self, images: Tensor) -> Tensor:
        """Maps images `(b 3 8 8)` to `(b f)`."""
        return self.with_spatial(images)[0]

    def with_spatial(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the features and 25 fewer spatial ones."""
        outputs = (images.flatten(1) @ self.weight).relu()
        return outputs[:, : self.num_features], outputs[:, self.num_features :]

    def logits(self, features: Tensor) -> Tensor:
        """Returns the logits of 1008 classes."""
        return features @ self.classes


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the files, measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("outputs/references"))
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument(
        "--images", type=int, default=10_000, help="samples; half as many references"
    )
    parser.add_argument("--peer-python", type=Path, default=ROOT / ".venv-peers/bin/python")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    print(aligned(compare(options.output, options.width, options.images, options.peer_python)))


def compare(
    folder: Path, width: int, num_images: int, peer_python: Path | None
) -> list[dict[str, str]]:
    """Returns the rows of the table."""
    network = RandomNetwork(width)
    judges = Judges(None, network, torch.device("cpu"), spatial=True)
    reference_pixels, sample_pixels = pixels(num_images // 2, 0), pixels(num_images, 1)
    reference, samples = judged(judges, reference_pixels), judged(judges, sample_pixels)
    assert reference.features is not None and samples.features is not None
    pooled, spatial = (statistics(x) for x in (reference.features, array(reference.spatial)))
    sample_features, logits = array(samples.features), network.logits(samples.features)

    files = {
        "edm": folder / "edm.npz",
        "clean_fid": folder / "clean_fid.npz",
        "torch_fidelity": folder / "torch_fidelity.pt",
        "adm": folder / "VIRTUAL_adm.npz",
    }
    np.savez(files["edm"], **pooled)
    np.savez_compressed(files["clean_fid"], **statistics(reference.features.numpy()))
    torch.save(fid_features_to_statistics(reference.features), files["torch_fidelity"])
    all_statistics = {**pooled, "mu_s": spatial["mu"], "sigma_s": spatial["sigma"]}
    np.savez(files["adm"], arr_0=reference_pixels, **all_statistics)

    ours = {}
    for program, path in files.items():
        opened = open_reference(path, network, program)  # type: ignore[arg-type]
        images = None
        if (dataset := opened.images) is not None:
            images = judged(judges, np.stack([dataset.images.load(i) for i in range(len(dataset))]))
        ours[program] = ReferenceComparison(opened, images, network).numbers(samples)

    rows = []

    def add(file: str, number: str, peer: str, value: float) -> None:
        own = ours[file][number]
        difference = abs(own - value) / abs(value)
        rows.append({"file": file, "number": number, "ours": f"{own:.8g}", "theirs": f"{value:.8g}",
                     "computed by": peer, "relative difference": f"{difference:.1e}"})  # fmt: skip

    formula = "ADM's formulas"
    fid = adm_formulas.frechet(sample_features, *pooled.values())
    add("edm", "reference_fid", formula, fid)
    fidelity = (fid_features_to_statistics(samples.features),
                fid_features_to_statistics(reference.features))  # fmt: skip
    value = fid_statistics_to_metric(*fidelity, verbose=False)["frechet_inception_distance"]
    for file in ("edm", "torch_fidelity"):
        add(file, "reference_fid", "torch-fidelity", value)
    if peer_python is not None and peer_python.exists():
        np.savez(folder / "samples.npz", **statistics(samples.features.numpy()))
        script = ROOT / "benchmarks/peers/clean_fid.py"
        own_file = folder / "taming.npz"
        own_file.unlink(missing_ok=True)
        dataset = open_reference(files["adm"], network, "adm").images
        assert dataset is not None
        write_statistics(own_file, reference, network, dataset, range(len(dataset)))
        for file in (files["clean_fid"], own_file):
            value = float(output_of(peer_python, script, folder / "samples.npz", file))
            if file == own_file:
                opened = open_reference(own_file, network)
                ours["taming"] = ReferenceComparison(opened, None, network).numbers(samples)
            add("taming" if file == own_file else "clean_fid", "reference_fid", "clean-fid", value)
    add("adm", "reference_fid", formula, fid)
    sfid = adm_formulas.frechet(array(samples.spatial), *spatial.values())
    add("adm", "reference_sfid", formula, sfid)
    score = adm_formulas.inception_score(logits.double().numpy())
    add("adm", "adm_inception_score", formula, score)
    if num_images % SPLIT == 0 or num_images < SPLIT:
        splits = max(1, num_images // SPLIT)
        value = isc_features_to_metric(logits, splits, shuffle=False)["inception_score_mean"]
        add("adm", "adm_inception_score", "torch-fidelity", value)
    reference_features = array(reference.features)
    pairs = {formula: adm_formulas.precision_and_recall(reference_features, sample_features)}
    settings = {"prc_neighborhood": 3, "prc_batch_size": 2000, "save_cpu_ram": True,
                "verbose": False}  # fmt: skip
    shares = prc_features_to_metric(samples.features, reference.features, **settings)
    pairs["torch-fidelity"] = shares["precision"], shares["recall"]
    pairs["ADM's formulas in half precision"] = adm_formulas.precision_and_recall(
        reference_features, sample_features, half=True
    )
    for peer, pair in pairs.items():
        for number, value in zip(("adm_precision", "adm_recall"), pair, strict=True):
            add("adm", number, peer, value)
    return rows


def pixels(count: int, seed: int) -> np.ndarray:
    """Draws images, uint8 `(n 8 8 3)`; other seeds are other distributions."""
    rng = np.random.default_rng(seed)
    smooth = rng.normal(size=(count, 4, 4, 3)).repeat(2, 1).repeat(2, 2)
    noise = rng.normal(size=(count, SIDE, SIDE, 3))
    return (128 + 8 * seed + 50 * smooth + 10 * noise).clip(0, 255).astype(np.uint8)


def judged(judges: Judges, images: np.ndarray) -> JudgedImages:
    """Judges images, uint8 `(n 8 8 3)`."""
    result = JudgedImages(judges)
    for batch in torch.from_numpy(images).permute(0, 3, 1, 2).split(1000):
        result.update(batch / 127.5 - 1)
    return result.gather()


def array(features: Tensor | None) -> np.ndarray:
    """Returns features in float64."""
    assert features is not None
    return features.double().numpy()


def statistics(features: Tensor | np.ndarray) -> dict[str, np.ndarray]:
    """Returns `mu` and `sigma` as other programs compute them."""
    rows = np.asarray(features)
    return {"mu": rows.mean(0), "sigma": np.cov(rows, rowvar=False)}


def output_of(python: Path, *arguments: Path) -> str:
    """Runs a script and returns what it prints on its last line."""
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), *map(str, arguments)]
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=True, env=environment
    )
    return result.stdout.splitlines()[-1]


if __name__ == "__main__":
    main()
