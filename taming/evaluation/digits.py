"""Quality of sampled digits: whether they are recognisable, and whether they are copies."""

import json
from pathlib import Path

import numpy as np

from taming.data import ImageDataset

__all__ = ["demo_text", "report_demo", "report_digits"]

SIDE = 8  # pixels of an original digit


def report_demo(output_dir: Path, train: ImageDataset, held_out: ImageDataset) -> dict[str, float]:
    """Returns the numbers of the demo's two runs and of its samples; see `report_digits`."""
    stage_1, stage_2 = (
        json.loads((output_dir / run / "result.json").read_text())["metrics"]
        for run in ("vqgan", "transformer")
    )
    return {
        "psnr": stage_1["val/psnr"],
        "codebook_usage": stage_1["val/codebook_usage"],
        "bits_per_token": stage_2["val/bits_per_token"],
        **report_digits(output_dir / "samples" / "samples.npz", train, held_out),
    }


def demo_text(report: dict[str, float], output_dir: Path) -> str:
    """Returns the demo's `report.json`, and the files of the demo, in words."""
    return f"""
The demo took {report["seconds"]:.0f} s, as long as {report["products"]:.0f} products of two \
2048×2048 matrices. On new digits:
  reconstructions     {report["psnr"]:.1f} dB PSNR, {report["codebook_usage"]:.0%} of the codes used
  transformer         {report["bits_per_token"]:.3f} bits per token
  {report["num_samples"]} sampled digits  an SVM sees the requested digit in \
{report["agreement"]:.1%} (in {report["svm_accuracy"]:.1%} of real ones);
                      distance to the nearest training image {report["distance_ratio"]:.2f} of a \
new real digit's
It wrote under {output_dir}/:
  samples/samples.png  the sampled digits as a picture
  samples/samples.npz  the sampled digits as an array
  vqgan/, transformer/ the two runs: model/, checkpoints/, metrics.csv, grids/ …
  report.json          the numbers above"""


def report_digits(samples: Path, train: ImageDataset, held_out: ImageDataset) -> dict[str, float]:
    """Judges `samples.npz` of a class-conditional model by an SVM and by distances in pixels.

    Returns:
        - `num_samples`.
        - `agreement`: the share of samples in which an SVM that was trained on the real training
          digits sees the requested digit.
        - `svm_accuracy`: the accuracy of the SVM on held-out digits, which bounds the agreement.
        - `sample_distance`: the median Euclidean distance of a sample to its nearest training
          digit, in grey levels of 0 to 16.
        - `held_out_distance`: the same for held-out digits.
        - `distance_ratio`: the quotient of both, near 0 for copies and near 1 for new digits.
    """
    from sklearn.metrics import pairwise_distances_argmin_min
    from sklearn.svm import SVC

    with np.load(samples) as arrays:
        sampled, requested = _as_digits(arrays["arr_0"][..., 0].astype(np.float64)), arrays["arr_1"]
    train_digits, train_labels = _real(train)
    real_digits, real_labels = _real(held_out)
    svm = SVC(gamma=0.001).fit(train_digits, train_labels)
    sample_distance, held_out_distance = (
        float(np.median(pairwise_distances_argmin_min(digits, train_digits)[1]))
        for digits in (sampled, real_digits)
    )
    return {
        "num_samples": len(sampled),
        "agreement": float((svm.predict(sampled) == requested).mean()),
        "svm_accuracy": float((svm.predict(real_digits) == real_labels).mean()),
        "sample_distance": sample_distance,
        "held_out_distance": held_out_distance,
        "distance_ratio": sample_distance / held_out_distance,
    }


def _real(dataset: ImageDataset) -> tuple[np.ndarray, np.ndarray]:
    images = np.stack([dataset[i]["images"][0].numpy() for i in range(len(dataset))])
    labels = np.array([dataset.label(i) for i in range(len(dataset))])
    return _as_digits((images + 1) * 127.5), labels


def _as_digits(images: np.ndarray) -> np.ndarray:
    """Averages `(n H W)` in [0, 255] over blocks to the original format, `(n 64)` in [0, 16]."""
    factor = images.shape[1] // SIDE
    blocks = images.reshape(len(images), SIDE, factor, SIDE, factor).mean((2, 4))
    return blocks.reshape(len(images), -1) * 16 / 255
