"""Reference files of other programs, and ADM's metrics against formulas and torch-fidelity."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_features import features
from tiny_inception import TinyInception
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_isc import isc_features_to_metric
from torch_fidelity.metric_prc import prc_features_to_metric

from benchmarks import adm_formulas
from taming.data import ImageDataset, ImageTransform, Part, PictureReader, open_samples
from taming.evaluation.adm import adm_inception_score, adm_precision_and_recall
from taming.evaluation.features import INCEPTION_WEIGHTS, TENSORFLOW_RESIZE, FeatureNetwork
from taming.evaluation.judges import JudgedImages, Judges
from taming.evaluation.reference import (
    ReferenceComparison,
    check_statistics_file,
    open_reference,
    write_statistics,
)
from taming.runtime.errors import UserError


class OtherNetwork(TinyInception):
    digest = "1" * 64
    is_inception = False


NETWORK = TinyInception()
JUDGES = Judges(None, NETWORK, torch.device("cpu"), spatial=True)


def pixels(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (64 * seed + rng.integers(0, 160, (count, 4, 4, 3))).clip(0, 255).astype(np.uint8)


def judged(images: np.ndarray) -> JudgedImages:
    result = JudgedImages(JUDGES)
    result.update(torch.from_numpy(images).permute(0, 3, 1, 2) / 127.5 - 1)
    return result.gather()


def arrays(images: JudgedImages) -> tuple[np.ndarray, np.ndarray]:
    assert images.features is not None and images.spatial is not None
    return images.features.double().numpy(), images.spatial.double().numpy()


def statistics(rows: np.ndarray) -> dict[str, np.ndarray]:
    return {"mu": rows.mean(0), "sigma": np.cov(rows, rowvar=False)}


def dataset(path: Path) -> ImageDataset:
    transform = ImageTransform(resolution=4, resize="none", crop="none")
    return ImageDataset(Part(open_samples(path, PictureReader(3))), transform, seed=0)


@pytest.mark.parametrize("program", ["edm", "clean_fid", "torch_fidelity"])
def test_distance_to_statistics_of_another_program(program: str, tmp_path: Path) -> None:
    reference, samples = judged(pixels(90, 0)), judged(pixels(70, 1))
    rows, _ = arrays(reference)
    expected = adm_formulas.frechet(arrays(samples)[0], *statistics(rows).values())
    # the types that each program writes
    peer_statistics = statistics(rows.astype(np.float32 if program != "edm" else np.float64))
    assert peer_statistics["sigma"].dtype == np.float64
    path = tmp_path / "file.npz"
    if program == "torch_fidelity":
        path = tmp_path / "file.pt"
        assert reference.features is not None
        torch.save(fid_features_to_statistics(reference.features), path)
    else:
        (np.savez_compressed if program == "clean_fid" else np.savez)(path, **peer_statistics)
    opened = open_reference(path, NETWORK, None if path.suffix == ".pt" else program)  # type: ignore[arg-type]
    assert opened.program == program
    numbers = ReferenceComparison(opened, None, NETWORK).numbers(samples)
    assert expected > 0.1
    assert numbers == {"reference_fid": pytest.approx(expected, rel=1e-5)}


@pytest.mark.parametrize("with_statistics", [True, False])
def test_numbers_of_adms_evaluator(
    with_statistics: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taming.evaluation.adm.SPLIT_SIZE", 30)
    monkeypatch.setattr("taming.evaluation.neighbours.BLOCK", 37)
    everything, samples = judged(pixels(200, 0)), judged(pixels(70, 1))
    images = pixels(200, 0)[:80]  # ADM's files have statistics of more images than they contain
    source = judged(images) if not with_statistics else everything
    pooled, spatial = map(statistics, arrays(source))
    path = tmp_path / "VIRTUAL_tiny.npz"
    extra = {"mu_s": spatial["mu"], "sigma_s": spatial["sigma"], **pooled}
    np.savez(path, arr_0=images, **(extra if with_statistics else {}))
    opened = open_reference(path, NETWORK)
    assert opened.program == "adm" and opened.images is not None and opened.needs_spatial
    reference = JudgedImages(JUDGES)
    for number in range(len(opened.images)):
        reference.update(opened.images[number]["images"][None])
    reference.gather()
    torch.testing.assert_close(reference.features, judged(images).features)
    numbers = ReferenceComparison(opened, reference, NETWORK).numbers(samples)
    features, spatial_features = arrays(samples)
    logits = features @ NETWORK.classes.double().numpy()
    precision, recall = adm_formulas.precision_and_recall(arrays(judged(images))[0], features)
    assert 0.05 < precision < 0.95 and 0.05 < recall < 0.95
    assert numbers == {
        "reference_fid": pytest.approx(adm_formulas.frechet(features, *pooled.values()), rel=1e-5),
        "reference_sfid": pytest.approx(
            adm_formulas.frechet(spatial_features, *spatial.values()), rel=1e-5
        ),
        "adm_precision": pytest.approx(precision),
        "adm_recall": pytest.approx(recall),
        "adm_inception_score": pytest.approx(adm_formulas.inception_score(logits, 30), rel=1e-5),
    }
    shuffled = ReferenceComparison(opened, reference, NETWORK).numbers(samples, shuffle_seed=0)
    assert shuffled["adm_inception_score"] != numbers["adm_inception_score"]
    assert shuffled["reference_fid"] == numbers["reference_fid"]


def test_adm_numbers_equal_torch_fidelitys() -> None:
    samples, reference = features(150, 8, 0, shift=0.4), features(190, 8, 1)
    settings = {"prc_neighborhood": 3, "prc_batch_size": 64, "save_cpu_ram": True, "verbose": False}
    expected = prc_features_to_metric(samples, reference, **settings)
    assert 0 < expected["precision"] < 1
    pair = adm_precision_and_recall(samples, reference)
    assert pair == pytest.approx((expected["precision"], expected["recall"]))
    assert adm_precision_and_recall(reference, reference) == (1, 1)
    logits = 3 * torch.randn(200, 12, generator=torch.Generator().manual_seed(0))
    score = isc_features_to_metric(logits, splits=1, shuffle=False)["inception_score_mean"]
    assert adm_inception_score(logits) == pytest.approx(score)


def test_other_programs_read_the_statistics_that_we_write(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", pixels(60, 0))
    images, samples = judged(pixels(60, 0)), judged(pixels(70, 1))
    where: Any = (images, NETWORK, dataset(tmp_path / "images.npz"), range(60))
    path = write_statistics(tmp_path / "new" / "ours.npz", *where)
    saved_arrays = np.load(path)  # without pickles, as every program reads it
    rows, spatial = arrays(images)
    for name, value in statistics(rows).items():
        np.testing.assert_allclose(saved_arrays[name], value, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(saved_arrays["mu_s"], spatial.mean(0), rtol=1e-5)
    np.testing.assert_array_equal(saved_arrays["arr_0"], pixels(60, 0))
    assert json.loads(str(saved_arrays["network"]))["weights"] == INCEPTION_WEIGHTS
    opened = open_reference(path, NETWORK)
    assert opened.program is None and opened.warnings(NETWORK, [4, 4]) == []
    assert opened.protocol(NETWORK)["reference_file_program"] == "taming"
    numbers = ReferenceComparison(opened, images, NETWORK).numbers(images)
    assert numbers["reference_fid"] == pytest.approx(0, abs=1e-6)
    with pytest.raises(UserError, match=r"features of tiny \(weights 00000000\)"):
        open_reference(path, OtherNetwork())
    path = write_statistics(tmp_path / "ours.pt", *where)
    ours = torch.load(path, weights_only=False)
    assert samples.features is not None
    peer_statistics = fid_features_to_statistics(samples.features)
    distance = fid_statistics_to_metric(ours, peer_statistics, verbose=False)[
        "frechet_inception_distance"
    ]
    opened = open_reference(path, NETWORK)
    numbers = ReferenceComparison(opened, None, NETWORK).numbers(samples)
    assert numbers["reference_fid"] == pytest.approx(distance, rel=1e-4)


def test_warnings_of_another_resize_other_weights_and_other_sizes(tmp_path: Path) -> None:
    def warnings(name: str, program: Any = None, network: FeatureNetwork = NETWORK) -> str:
        return " ".join(open_reference(tmp_path / name, network, program).warnings(network, [4, 4]))

    rows, _ = arrays(judged(pixels(30, 0)))
    np.savez(tmp_path / "plain.npz", **statistics(rows))
    np.savez(tmp_path / "large.npz", pixels(30, 0).repeat(2, 1).repeat(2, 2))
    assert "Set reference_program." in warnings("plain.npz")
    assert warnings("plain.npz", "edm") == warnings("plain.npz", "adm") == ""
    assert "resize" in warnings("plain.npz", "clean_fid")
    assert "bicubic, antialiased" in warnings("plain.npz", "clean_fid")
    assert "resize" in warnings("plain.npz", "pytorch_fid")
    other = TinyInception()
    other.weights = "abcdef01"
    assert "weights" in warnings("plain.npz", "edm", other)
    assert "are 8×8, and this evaluation's are 4×4" in warnings("large.npz")
    protocol = open_reference(tmp_path / "plain.npz", NETWORK, "clean_fid").protocol(NETWORK)
    assert protocol["reference_file_resize"] != protocol["features_resize"] == TENSORFLOW_RESIZE


def test_files_that_are_no_reference(tmp_path: Path) -> None:
    def fails(message: str, network: Any = NETWORK, program: Any = None, **content: Any) -> None:
        np.savez(tmp_path / "file.npz", **content)
        with pytest.raises(UserError, match=message):
            open_reference(tmp_path / "file.npz", network, program)

    good = statistics(arrays(judged(pixels(30, 0)))[0])
    fails("needs a feature network", network=None, **good)
    fails("has features of Inception", OtherNetwork(), "edm", **good)
    fails("neither statistics", other=good["mu"])
    fails("a row and a column per mu", mu=good["mu"], sigma=good["sigma"][:5])
    fails("a row and a column per mu", mu=good["mu"][:, None], sigma=good["sigma"])
    fails("sigma must be finite", mu=good["mu"])
    fails("mu must be finite", mu=good["mu"] * np.nan, sigma=good["sigma"])
    small = {"mu": good["mu"][:5], "sigma": good["sigma"][:5, :5]}
    fails("statistics of 5 features, but tiny has 12", **small)
    fails("cannot be read", mu=np.array([print]), sigma=good["sigma"])  # a pickle inside
    for path, message in (("file.pkl", "cannot be read"), ("file.pt", "cannot be read")):
        (tmp_path / path).write_bytes(pickle.dumps(good | {"run": print}))
        with pytest.raises(UserError, match=message):
            open_reference(tmp_path / path, NETWORK)
    with pytest.raises(UserError, match="does not exist"):
        open_reference(tmp_path / "none.npz", NETWORK)
    with pytest.raises(UserError, match=r"\.npz or \.pt"):
        check_statistics_file("file.csv", NETWORK)
    with pytest.raises(UserError, match="Set frechet"):
        check_statistics_file("file.npz", None)
