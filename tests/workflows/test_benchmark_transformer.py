"""The benchmark's transformer stage: cases, numbers, our side, and the real peers."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from taming.conditioning import ClassLabel, Unconditional
from taming.errors import UserError
from taming.generation import ImageGenerator
from taming.training import OptimizerConfig, TransformerTraining
from taming.transformer import GPT
from taming.vqgan import VQGAN
from taming.workflows.benchmark import (
    AutoencoderCase,
    BenchmarkSettings,
    Comparison,
    OurSide,
    PeerConfig,
    TransformerCase,
    comparison_table,
    run_benchmark,
    transformer_build,
)
from taming.workflows.benchmark.compare import compare
from taming.workflows.benchmark.peer import PeerProcess
from taming.workflows.benchmark.peers.serve import Session, random_inputs
from taming.workflows.benchmark.timing import Timing

PEER_PYTHON = Path(__file__).resolve().parents[2] / ".venv-peers" / "bin" / "python"


def case(**changes: Any) -> TransformerCase:
    plain: dict[str, Any] = {
        "name": "tiny",
        "batch_size": 2,
        "num_tokens": 9,
        "num_layers": 2,
        "num_heads": 2,
        "embed_dim": 8,
        "codebook_size": 16,
        "top_k": 4,
    }
    return TransformerCase(**{**plain, **changes})


CASE = case()


def settings(**changes: Any) -> BenchmarkSettings:
    plain: dict[str, Any] = {"device": "cpu", "threads": 1, "turn_seconds": 0.0, "steps": 1}
    return BenchmarkSettings(**{**plain, **changes})


def timing(measurement: str, seconds: list[float], first_seconds: float = 0.0) -> Timing:
    facts = {
        "device_name": "abacus",
        "threads": 1,
        "torch": "2.99",
        "versions": {},
        "parameters": {"blocks": 1000, "head": 200},
        "weight_bytes": 4 * 10**9,
        "cache_bytes": 9 * 10**9,
    }
    work = CASE.work(measurement)
    return Timing(settings().for_side(CASE), facts, work, first_seconds, seconds)


# --- cases ----------------------------------------------------------------------------------------


def test_what_a_call_gets_done() -> None:
    assert CASE.work("sample") == {"tokens": 18}  # two images of nine
    assert CASE.work("gpt_step") == {"steps": 1, "tokens": 18}
    guided = case(guidance_scale=2.0)
    assert guided.work("sample") == {"tokens": 18}  # of images, not of sequences
    assert guided.shape == "tokens 2×9, guidance 2"
    step = timing("gpt_step", [0.5])
    assert step.per_second == {"steps": 2.0, "tokens": 36.0}


def test_the_grid_has_as_many_places_as_there_are_tokens() -> None:
    assert case(num_tokens=256).grid_size == (16, 16)
    assert case(num_tokens=10).grid_size == (1, 10)


def test_a_case_may_be_measured_in_part() -> None:
    everything = ["gpt_step", "sample", "sample_compiled"]
    assert CASE.chosen(None) == everything
    assert CASE.chosen(["sample", "encode", "gpt_step"]) == ["gpt_step", "sample"]
    assert case(measurements=["sample"]).chosen(None) == ["sample"]
    assert case(measurements=["sample"]).chosen(["gpt_step"]) == []
    with pytest.raises(UserError, match=r"cases\.tiny\.measurements must be some of .*not encode"):
        case(measurements=["encode"])  # of the other stage
    with pytest.raises(UserError, match="not none"):
        case(measurements=[])


def test_no_measurement_at_all_is_an_error() -> None:
    side = Session(lambda *arguments: None)
    with pytest.raises(UserError, match="nothing to time"):
        run_benchmark(side, [CASE], {}, settings(measurements=["encode"]), print)


def test_both_sides_are_given_the_same_tokens() -> None:
    told = settings().for_side(case(num_tokens=400))
    tokens = random_inputs(told)
    assert tokens.shape == (2, 400)
    assert tokens.unique().tolist() == list(range(16))  # all codes, and no other number
    assert torch.equal(tokens, random_inputs(told))


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compiled", "first", "calls"),
    [
        # 30 s of compiling, of which an uncompiled first call takes 2; each later call saves 0.5 s
        (0.5, 30.0, 1 + 56),
        (0.5, 30.1, 1 + 57),  # a call is whole
        (0.5, 1.0, 1),  # kept from earlier: at once
        (1.5, 30.0, float("inf")),  # slower: never
    ],
)
def test_break_even(compiled: float, first: float, calls: float) -> None:
    ours = timing("sample_compiled", [compiled], first)
    comparison = Comparison(CASE, "sample_compiled", ours, eager=timing("sample", [1.0], 2.0))
    assert comparison.break_even == {"images": 2 * calls, "tokens": 18 * calls}
    if calls != float("inf"):
        # after as many calls the compiled ones have taken no longer, one call earlier they had
        def saved(n: float) -> float:
            return (2.0 + (n - 1) * 1.0) - (first + (n - 1) * compiled)

        assert saved(calls) >= 0
        assert calls == 1 or saved(calls - 1) < 0


def test_share_of_bandwidth() -> None:
    ours = timing("sample", [2.0])
    comparison = Comparison(CASE, "sample", ours, peak_bandwidth_gbs=90.0)
    # nine steps in 2 s, each reading 4 GB of weights, and 9 GB of cache in all: 22.5 of 90 GB/s
    assert comparison.share_of_bandwidth == pytest.approx(0.25)
    assert Comparison(CASE, "sample", ours).share_of_bandwidth is None
    step = Comparison(CASE, "gpt_step", timing("gpt_step", [2.0]), peak_bandwidth_gbs=90.0)
    assert step.share_of_bandwidth is None


def test_the_table_and_the_record() -> None:
    eager, compiled = timing("sample", [1.0], 2.0), timing("sample_compiled", [0.5], 30.0)
    never = timing("sample_compiled", [1.5], 30.0)
    comparisons = [
        Comparison(CASE, "gpt_step", timing("gpt_step", [0.5])),
        Comparison(CASE, "sample", eager, "other", timing("sample", [3.0])),
        Comparison(CASE, "sample_compiled", compiled, eager=eager),
        Comparison(CASE, "sample_compiled", never, eager=eager),
    ]
    lines = comparison_table(comparisons).splitlines()
    title = next(line for line in lines if line.startswith("tiny"))
    assert title == "tiny: tokens 2×9; parameters (1,200): blocks 1,000, head 200"
    headings, step, sample, faster, slower = lines[-5:]
    places = {name: headings.index(name) for name in ("steps/s", "tokens/s", "pays after")}
    assert step[places["steps/s"] :].startswith("2 ")
    assert step[places["tokens/s"] :].startswith("36 ")
    assert sample[places["steps/s"] :].startswith("   ")
    assert sample[places["tokens/s"] :].startswith("18 : 6 ")
    assert faster[places["pays after"] :] == "114 images, 1,026 tokens"
    assert slower[places["pays after"] :] == "never"
    records = [json.loads(json.dumps(c.record())) for c in comparisons]
    assert [r["break_even"] for r in records[1:]] == [
        None,
        {"images": 114, "tokens": 1026},
        {"images": "never", "tokens": "never"},
    ]
    assert records[1]["peer"]["tokens_per_second"] == 6
    assert {r["kind"] for r in records} == {"transformer"}


def test_compiled_sampling_is_set_beside_the_eager_one_of_the_same_case() -> None:
    class Side(Session):
        def __init__(self) -> None:
            self.measurement = ""

        def begin(self, settings: dict[str, Any], measurement: str) -> dict[str, Any]:
            self.measurement, self.first = measurement, True
            return dict(timing("sample", []).facts)

        def run(self, steps: int) -> dict[str, Any]:
            compiled, first = self.measurement == "sample_compiled", self.first
            self.first = False
            seconds = (9.0 if first else 0.5) if compiled else 1.0
            return {"seconds": seconds * steps, "peak_memory_gib": None}

    only = ["sample", "sample_compiled"]
    cases = [case(name="small", measurements=only), case(name="large", batch_size=8)]
    results = run_benchmark(Side(), cases, {}, settings(warmup=0, rounds=1), lambda _: None)
    pays = [(c.case.name, c.measurement, c.break_even) for c in results if c.eager is not None]
    # eight seconds more, half a second less each time: 17 calls
    assert pays == [
        ("small", "sample_compiled", {"images": 34, "tokens": 306}),
        ("large", "sample_compiled", {"images": 136, "tokens": 1224}),
    ]


# --- our side -------------------------------------------------------------------------------------


def make_training(case: TransformerCase) -> TransformerTraining:
    conditioning = ClassLabel(1, dropout=0.1) if case.with_guidance else Unconditional()
    transformer = GPT(
        codebook_size=case.codebook_size,
        num_prefix_ids=conditioning.num_prefix_ids,
        context_length=case.num_tokens,
        num_layers=case.num_layers,
        num_heads=case.num_heads,
        embed_dim=case.embed_dim,
        positions="learned",
    )
    tokenizer = VQGAN(
        quantizer={"kind": "vector", "codebook_size": case.codebook_size, "codebook_dim": 1},
        resolution=2,
        base_channels=8,
        channel_multipliers=[1],
        num_residual_blocks=1,
        latent_channels=8,
    )
    return TransformerTraining(
        transformer,
        tokenizer,
        conditioning,
        case.grid_size,
        optimizer=OptimizerConfig(learning_rate=1e-3),
        max_steps=10**9,
        gradient_clip=None,
    )


@pytest.fixture
def watched() -> tuple[OurSide, list[TransformerTraining]]:
    made: list[TransformerTraining] = []

    def make(case: TransformerCase) -> TransformerTraining:
        made.append(make_training(case))
        return made[-1]

    return OurSide({"transformer": transformer_build(make)}), made


Watched = tuple[OurSide, list[TransformerTraining]]


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("guidance_scale", [1.0, 2.0])
def test_our_side_trains(watched: Watched, dtype: str, guidance_scale: float) -> None:
    side, made = watched
    told = settings(dtype=dtype).for_side(case(guidance_scale=guidance_scale))
    facts = side.begin(told, "gpt_step")
    transformer = made[0].transformer
    before = transformer.head.weight.detach().clone()
    assert facts is not None
    side.run(2)
    assert made[0].step == 1 + 2
    assert transformer.head.weight.dtype == torch.float32
    # AdamW's first steps change each weight by the learning rate
    change = (transformer.head.weight - before).abs()
    assert change.max().item() == pytest.approx(2e-3, rel=0.2)
    assert all(p.grad is None for p in transformer.parameters())
    d, v, n, layers = 8, 16, 9, 2
    assert facts["parameters"] == {
        "blocks": layers * (12 * d * d + 13 * d),
        "embeddings": (v + n) * d,
        "head": 2 * d + d * v,
        "prefix": (1 if guidance_scale == 1 else 2) * d,
    }


def test_operations_of_a_training_step(watched: Watched) -> None:
    side, _ = watched
    comparison = compare(side, CASE, "gpt_step", settings(rounds=1, warmup=0, peak_tflops=1.0))
    assert comparison is not None
    assert comparison.flops is not None
    b, n, d, v, layers = 2, 9, 8, 16, 2
    # a multiplication and an addition for each weight of a matrix and token, in three passes:
    # forward, and backward once for the weights and once for the inputs
    of_matrices = 3 * 2 * b * n * (layers * 12 * d * d + d * v)
    # QKᵀ and softmax·V, and in the backward pass the four products of their gradients and QKᵀ again
    of_attention = layers * b * 2 * n * n * d * (2 + 5)
    assert of_matrices <= comparison.flops <= of_matrices + of_attention
    assert comparison.share_of_peak == comparison.flops / comparison.ours.seconds[0] / 1e12
    sampled = compare(side, CASE, "sample", settings(rounds=1, warmup=0, peak_tflops=1.0))
    assert sampled is not None
    assert sampled.flops is None  # memory is its limit


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_our_side_samples(watched: Watched, dtype: str) -> None:
    side, made = watched
    facts = side.begin(settings(dtype=dtype).for_side(CASE), "sample")
    assert facts is not None
    assert side.call is not None
    tokens = side.call()
    assert tokens.shape == (2, 9)
    module = made[0]
    width = 2 if dtype == "bf16" else 4
    counts = facts["parameters"]
    assert facts["weight_bytes"] == width * (counts["blocks"] + counts["head"])
    # 1 + … + 9 tokens' keys and values, 8 wide each, of 2 layers and 2 images
    assert facts["cache_bytes"] == width * 45 * (8 + 8) * 2 * 2
    generator = ImageGenerator(None, module.transformer, module.conditioning, (3, 3))
    assert torch.equal(tokens, generator.sample_tokens(2, top_k=4, seed=0))
    side.run(1)


@pytest.mark.slow
@pytest.mark.compile
def test_our_side_samples_compiled_and_with_guidance(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what PyTorch keeps on disk may be used here: compiling afresh takes long
    monkeypatch.setattr("torch._inductor.utils.fresh_cache", nullcontext)
    side, made = watched
    told = settings().for_side(case(num_tokens=4, num_layers=1, guidance_scale=2.0))
    eager, compiled = (
        begun_call(side, told, measurement)() for measurement in ("sample", "sample_compiled")
    )
    assert eager.shape == (2, 4)
    assert torch.equal(compiled, eager)  # each begins with the same weights and random numbers
    assert made[1].conditioning.num_classes == 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    # what is compiled is kept: a second call is no second compilation
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    side.run(2)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def begun_call(side: OurSide, told: dict[str, Any], measurement: str) -> Callable[[], torch.Tensor]:
    side.begin(told, measurement)
    assert side.call is not None
    return side.call


# --- peers ----------------------------------------------------------------------------------------


@pytest.fixture
def peer() -> Callable[[str], PeerProcess]:
    if not PEER_PYTHON.is_file():
        pytest.skip(f"needs the peers' environment at {PEER_PYTHON}")
    return lambda script: PeerProcess(script, PeerConfig(script, str(PEER_PYTHON)))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["compvis_transformer", "transformers_gpt2"])
def test_real_peers(watched: Watched, peer: Callable[[str], PeerProcess], script: str) -> None:
    side, _ = watched
    config = PeerConfig(script, str(PEER_PYTHON))
    with peer(script) as process:
        for measurement in ("gpt_step", "sample"):
            # that their parts have as many weights as ours is checked here
            comparison = compare(
                side, CASE, measurement, settings(rounds=1), script, config, process
            )
            assert comparison is not None
            assert comparison.peer is not None
            here, there = (t.facts["parameters"] for t in (comparison.ours, comparison.peer))
            assert there == {part: here[part] for part in ("blocks", "embeddings", "head")}
        guided = case(guidance_scale=2.0)
        assert process.begin(settings(dtype="bf16").for_side(guided, "bf16"), "sample")
        assert process.run(1)["seconds"] > 0
        assert process.begin(settings().for_side(autoencoder_case()), "encode") is None


def autoencoder_case() -> AutoencoderCase:
    return AutoencoderCase(
        name="tiny",
        batch_size=1,
        resolution=8,
        base_channels=4,
        channel_multipliers=[1],
        num_residual_blocks=1,
        attention_resolutions=[],
        latent_channels=4,
        codebook_size=8,
        codebook_dim=4,
    )
