import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from taming.discriminators import PatchDiscriminator
from taming.errors import UserError
from taming.linear import HAS_ONEDNN, WIDE, Linear
from taming.training import Adversary, OptimizerConfig, VQGANTraining
from taming.vqgan import VQGAN
from taming.workflows.benchmark import (
    AutoencoderCase,
    BenchmarkSettings,
    Comparison,
    OurSide,
    PeerConfig,
    autoencoder_build,
    comparison_table,
    run_benchmark,
)
from taming.workflows.benchmark.compare import compare
from taming.workflows.benchmark.flops import count_flops
from taming.workflows.benchmark.peer import PeerError, PeerProcess
from taming.workflows.benchmark.peers.serve import Session
from taming.workflows.benchmark.timing import Timing

CASE = AutoencoderCase(
    name="tiny",
    batch_size=2,
    resolution=16,
    base_channels=4,
    channel_multipliers=[1, 2],
    num_residual_blocks=1,
    attention_resolutions=[],
    latent_channels=4,
    codebook_size=8,
    codebook_dim=4,
    discriminator_channels=4,
    discriminator_layers=1,
)


def settings(**changes: Any) -> BenchmarkSettings:
    plain: dict[str, Any] = {"device": "cpu", "threads": 1, "turn_seconds": 0.0}
    return BenchmarkSettings(**{**plain, **changes})


def timing(seconds: list[float], **facts: Any) -> Timing:
    known = {
        "device_name": "abacus",
        "threads": 1,
        "torch": "2.99",
        "versions": {"program": "1.0"},
        "parameters": {"autoencoder": 1234},
    }
    return Timing(settings().for_side(CASE), {**known, **facts}, CASE.work("step"), 7.0, seconds)


# --- numbers --------------------------------------------------------------------------------------


def test_the_ratio_is_of_pairs_in_the_same_round() -> None:
    comparison = Comparison(CASE, "step", timing([1.0, 2.0, 4.0]), "other", timing([3.0, 2.0, 8.0]))
    ratio = comparison.ratio
    assert ratio is not None
    # the rounds' ratios are 3, 1 and 2; the medians' would be 3 / 2
    assert (ratio.median, ratio.least, ratio.greatest) == (2.0, 1.0, 3.0)
    assert comparison.ours.per_second == {"images": 1.0}  # two images in the median's 2 s
    assert comparison.share_of_peak is None


def test_share_of_peak() -> None:
    ours = timing([1.0, 2.0, 4.0])
    comparison = Comparison(CASE, "step", ours, flops=4 * 10**12, peak_tflops=8.0)
    assert comparison.share_of_peak == 0.25  # 4 of 2 s × 8


def test_a_record_is_a_line_of_json() -> None:
    comparison = Comparison(CASE, "step", timing([1.0, 2.0]), "other", timing([3.0, 3.0]))
    record = json.loads(json.dumps(comparison.record()))
    assert record["case"]["resolution"] == 16
    assert record["ours"]["seconds"] == {
        "median": 1.5,
        "least": 1.0,
        "greatest": 2.0,
        "rounds": [1.0, 2.0],
    }
    assert record["ours"]["first_seconds"] == 7.0
    assert record["ours"]["images_per_second"] == 2 / 1.5
    assert record["ratio"] == {"median": 2.25, "least": 1.5, "greatest": 3.0}
    assert record["peer"]["dtype"] == "float32"


def test_the_table() -> None:
    slow = timing([3.0, 2.0, 8.0], versions={"old": "0.1"})
    table = comparison_table(
        [
            Comparison(CASE, "step", timing([1.0, 2.0, 4.0]), "other", slow),
            Comparison(CASE, "encode", timing([0.011, 0.012, 0.013])),
        ]
    )
    assert table == (
        "on cpu: abacus, 1 threads; ms a call, median of 3 rounds (least–greatest);\n"
        "ratio: the peer's time over ours round by round, above 1 ours is faster\n"
        "  taming  float32; torch 2.99, program 1.0\n"
        "  other   float32; torch 2.99, old 0.1\n"
        "\n"
        "tiny: images 2×3×16×16; parameters: autoencoder 1,234\n"
        "                                 peer   taming ms         peer ms           "
        "ratio             images/s    first call s\n"
        "training step, discriminator on  other  2000 (1000–4000)  3000 (2000–8000)  "
        "2.00 (1.00–3.00)  1 : 0.6667  7.00 : 7.00\n"
        "encode                                  12.0 (11.0–13.0)                    "
        "                  166.7       7.00"
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"dtype": "fp16"}, "float32 or bf16"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"measurements": ["stepp"]}, "stepp"),
        ({"measurements": []}, "none"),
        ({"peak_tflops": 0}, "peak_tflops"),
        ({"warmup": -1}, "warmup"),
    ],
)
def test_wrong_settings(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        settings(**wrong)


def test_a_side_may_have_its_own_precision() -> None:
    ours = settings(dtype="bf16", tf32=True)
    assert ours.for_side(CASE)["dtype"] == "bf16"
    theirs = ours.for_side(CASE, "float32", False)
    assert (theirs["dtype"], theirs["tf32"], theirs["batch_size"]) == ("float32", False, 2)


# --- our side -------------------------------------------------------------------------------------


class Distance(nn.Module):
    def forward(self, reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        return (reconstructions - images).diff(dim=3).square().mean()


class Watched:
    """Makes tiny trainings, keeps the last one, and counts calls of its discriminator."""

    def __init__(self) -> None:
        self.discriminator_calls = 0

    def __call__(self, case: AutoencoderCase, start: int | None) -> VQGANTraining:
        vqgan = VQGAN(
            quantizer={
                "kind": "vector",
                "codebook_size": case.codebook_size,
                "codebook_dim": case.codebook_dim,
            },
            resolution=case.resolution,
            base_channels=case.base_channels,
            channel_multipliers=case.channel_multipliers,
            num_residual_blocks=case.num_residual_blocks,
            attention_resolutions=case.attention_resolutions,
            latent_channels=case.latent_channels,
        )
        adversary = None
        if start is not None:
            network = PatchDiscriminator(base_channels=4, num_layers=1, norm="batch")
            network.register_forward_hook(self._count)
            adversary = Adversary(
                network,
                optimizer=OptimizerConfig(learning_rate=1e-3),
                start=start,
                warmup=0,
                ramp=0,
                weight=0.8,
                adaptive=True,
                max_steps=10**9,
            )
        self.module = VQGANTraining(
            vqgan,
            None if start is None else Distance(),
            adversary,
            optimizer=OptimizerConfig(learning_rate=1e-3),
            max_steps=10**9,
            gradient_clip=None,
            ema_decay=None,
        )
        self.before = [p.detach().clone() for p in self.module.vqgan.parameters()]
        return self.module

    def _count(self, *arguments: Any) -> None:
        self.discriminator_calls += 1


def our_side(make: Watched, **options: bool) -> OurSide:
    return OurSide({"autoencoder": autoencoder_build(make, **options)})


@pytest.mark.parametrize(
    ("measurement", "calls"), [("step", 3), ("step_before_start", 0), ("autoencoder_step", 0)]
)
@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_our_side_trains(measurement: str, calls: int, dtype: str) -> None:
    make = Watched()
    side = our_side(make)
    facts = side.begin(settings(dtype=dtype).for_side(CASE), measurement)
    assert facts is not None
    answer = side.run(2)
    assert answer["seconds"] > 0
    assert answer["peak_memory_gib"] is None  # the CPU's is not asked for
    # a step looks at the discriminator for the generator, at real and at reconstructed images;
    # before its start, not at all
    assert make.discriminator_calls == 2 * calls
    assert ("discriminator" in facts["parameters"]) is (measurement != "autoencoder_step")
    expected = sum(p.numel() for p in make.before)
    assert facts["parameters"]["autoencoder"] == expected
    after = list(make.module.vqgan.parameters())
    assert all(
        not torch.equal(old, new)
        for old, new in zip(make.before, after, strict=True)
        if new.ndim > 2
    )
    assert all(p.grad is None for p in after)  # cleared in the step, and so in its time


@pytest.mark.parametrize(
    ("measurement", "dtype"), [("encode", torch.int64), ("decode", torch.float32)]
)
def test_our_side_encodes_and_decodes(measurement: str, dtype: torch.dtype) -> None:
    side = our_side(Watched(), channels_last=True)
    side.begin(settings().for_side(CASE), measurement)
    assert side.call is not None
    result = side.call()
    assert result.dtype == dtype
    assert result.shape == ((2, 8, 8) if measurement == "encode" else (2, 3, 16, 16))


def test_operations_are_counted_with_the_backward_pass() -> None:
    images = torch.ones(2, 3, 4, 4)
    conv = nn.Conv2d(3, 5, 3, padding=1)
    forward = 2 * (2 * 4 * 4) * 5 * (3 * 3 * 3)  # multiply and add: outputs × channels × window

    def step() -> None:
        leaf = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(conv(leaf).sum(), leaf)  # of a leaf, as in training
        conv(gradient).sum().backward()

    assert count_flops(step) == 4 * forward
    with torch.inference_mode():
        assert count_flops(lambda: conv(images)) == forward
    assert count_flops(lambda: images.sigmoid()) == 0


def test_products_of_onednn_count_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Linear(WIDE, 2 * WIDE)
    x = torch.randn(2, 4, WIDE, requires_grad=True)
    product = 2 * 8 * WIDE * 2 * WIDE
    counted = []
    for has_onednn in (HAS_ONEDNN, False):
        monkeypatch.setattr("taming.linear.HAS_ONEDNN", has_onednn)
        with torch.no_grad():
            counted.append(count_flops(lambda: layer(x)))
        counted.append(count_flops(lambda: layer(x).sum().backward()))
    assert counted == [product, 3 * product] * 2


def test_our_share_of_the_peak_is_counted_in_the_comparison() -> None:
    peak = 1e-3
    comparison = compare(our_side(Watched()), CASE, "encode", settings(rounds=1, peak_tflops=peak))
    assert comparison is not None
    assert comparison.flops is not None
    # one 3×3 convolution of the encoder's first level alone has this many
    assert comparison.flops > 2 * (2 * 16 * 16) * 4 * (4 * 9)
    share = comparison.flops / (comparison.ours.seconds[0] * peak * 1e12)
    assert comparison.share_of_peak == pytest.approx(share)


def test_a_timing_of_nan_is_an_error() -> None:
    side = Session(lambda *arguments: (lambda: torch.tensor(float("nan")), {}))
    side.begin(settings().for_side(CASE), "step")
    with pytest.raises(FloatingPointError):
        side.run(1)


# --- turns ----------------------------------------------------------------------------------------


class Scripted(Session):
    """A side whose calls take as long as it says, in a list of all turns."""

    def __init__(self, name: str, seconds: float, turns: list[str], **parameters: int) -> None:
        self.name, self.seconds, self.turns = name, seconds, turns
        self.parameters = parameters

    def begin(self, settings: dict[str, Any], measurement: str) -> dict[str, Any] | None:
        self.turns.append(f"{self.name} begins")
        return {
            "device_name": "abacus",
            "threads": 1,
            "torch": "2.99",
            "versions": {},
            "parameters": self.parameters,
        }

    def run(self, steps: int) -> dict[str, Any]:
        self.turns.append(f"{self.name} {steps}")
        return {"seconds": self.seconds * steps, "peak_memory_gib": 1.0}


def test_the_sides_take_turns() -> None:
    turns: list[str] = []
    ours, theirs = Scripted("ours", 0.25, turns), Scripted("theirs", 0.5, turns)
    config = PeerConfig(script="x", python="y")
    plan = settings(rounds=3, warmup=2, steps=1, turn_seconds=0.9)
    comparison = compare(ours, CASE, "step", plan, "theirs", config, theirs)
    assert comparison is not None
    assert turns[:2] == ["theirs begins", "ours begins"]
    assert turns[2:8] == ["theirs 1"] * 3 + ["ours 1"] * 3  # the first call, and two of warm-up
    # four calls of 0.25 s make a turn of 0.9 s, and both sides do as many; then the order turns
    assert turns[8:] == ["ours 4", "theirs 4", "theirs 4", "ours 4", "ours 4", "theirs 4"]
    assert comparison.ours.seconds == [0.25] * 3
    assert comparison.ours.first_seconds == 0.25
    assert comparison.ratio is not None
    assert comparison.ratio.median == 2.0
    assert comparison.ours.peak_memory_gib == 1.0


def test_another_architecture_is_not_compared() -> None:
    turns: list[str] = []
    ours = Scripted("ours", 1.0, turns, autoencoder=10, perceptual=3)
    theirs = Scripted("theirs", 1.0, turns, autoencoder=11)
    with pytest.raises(PeerError, match="autoencoder is not of the same architecture: it has 11"):
        compare(ours, CASE, "step", settings(), "theirs", PeerConfig("x", "y"), theirs)


# --- peers ----------------------------------------------------------------------------------------

FAKE = """
import os, sys
import torch
from serve import autocast

assert "taming" not in sys.modules

def build(settings, measurement, images):
    print("noise on standard output")
    if measurement == "encode":
        return None
    if measurement == "decode":
        raise RuntimeError("no decoder")
    if measurement == "autoencoder_step":
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(3)
    calls = []
    def call():
        calls.append(1)
        with autocast(settings):
            product = images.flatten(1) @ images.flatten(1).T
        expected = torch.bfloat16 if settings["dtype"] == "bf16" else torch.float32
        assert product.dtype == expected
        return product
    parameters = {"autoencoder": settings["base_channels"]}
    return call, {"versions": {"fake": "3"}, "parameters": parameters}
"""


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., PeerConfig]:
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    return lambda **changes: PeerConfig(script=str(script), python=sys.executable, **changes)


def test_a_peer_process(
    fake: Callable[..., PeerConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "torch.py").write_text("raise ImportError('PYTHONPATH was used')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    with PeerProcess("fake", fake(dtype="bf16")) as peer:
        facts = peer.begin(settings().for_side(CASE, "bf16"), "step")
        assert facts is not None
        assert facts["versions"] == {"fake": "3"}
        assert facts["parameters"] == {"autoencoder": 4}
        assert facts["torch"] == torch.__version__
        assert facts["threads"] == 1
        assert peer.run(2)["seconds"] > 0
        assert peer.begin(settings().for_side(CASE), "encode") is None
        with pytest.raises(PeerError, match="RuntimeError: no decoder"):
            peer.begin(settings().for_side(CASE), "decode")
        assert peer.begin(settings().for_side(CASE), "step") == facts  # it goes on
        with pytest.raises(PeerError, match=r"its process ended\. out of memory"):
            peer.begin(settings().for_side(CASE), "autoencoder_step")
        with pytest.raises(PeerError, match="its process ended"):
            peer.run(1)


def test_peers_that_cannot_be_timed_are_left_out(
    fake: Callable[..., PeerConfig], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    turns: list[str] = []
    reported: list[Comparison] = []
    python = tmp_path / "env" / "bin" / "python"
    comparisons = run_benchmark(
        Scripted("ours", 1.0, turns, autoencoder=4),
        [CASE],
        {
            "absent": PeerConfig(script="compvis_vqgan", python=str(python)),
            "another": PeerConfig(script="diffusers_vqmodel", python=str(python)),
            "fake": fake(),
        },
        settings(rounds=2),
        reported.append,
    )
    assert comparisons == reported
    made = [(c.measurement, c.peer_name) for c in comparisons]
    assert made == [
        ("step", "fake"),
        ("step_before_start", "fake"),
        ("autoencoder_step", None),
        ("encode", None),
        ("decode", None),
    ]
    assert [len(c.ours.seconds) for c in comparisons] == [2] * 5
    messages = [record.getMessage() for record in caplog.records]
    absent = next(m for m in messages if m.startswith("absent is left out"))
    version = torch.__version__.split("+")[0]
    for part in (
        f"there is no Python at {python}",
        f"python3 -m venv {tmp_path / 'env'}\n",
        f"torch=={version} ",
        f"{python} -m pip install --no-deps taming-transformers-rom1504\n",
        "peer_python=PATH",
    ):
        assert part in absent
    assert sum(m.startswith("absent") for m in messages) == 1
    assert "another is left out, too" in messages  # the commands are not shown twice


def test_a_missing_package_is_answered_by_how_to_install_it(tmp_path: Path) -> None:
    script = tmp_path / "bare.py"
    script.write_text("import no_such_package")
    with (
        PeerProcess("bare", PeerConfig(str(script), sys.executable)) as peer,
        pytest.raises(PeerError, match=r"no_such_package.*\n.*-m venv"),
    ):
        peer.begin(settings().for_side(CASE), "step")
