import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from taming.report.curves import curve_section, group_curves, save_curves, thinned
from taming.report.health import findings
from taming.report.records import RunRecord, read_run
from taming.report.tables import as_text, configurations, duration, evaluations
from taming.runtime.errors import MissingPathError, UserError


def series(*values: float, step: int = 10) -> tuple[np.ndarray, np.ndarray]:
    return step * np.arange(1, len(values) + 1), np.array(values)


def record(**fields: object) -> RunRecord:
    return RunRecord(Path("run"), "run", **fields)


def test_each_metric_has_its_own_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,train/loss,val/loss\n50,2.5,\n100,nan,1.5\n150,1.25,\n200,0.")  # killed
    metrics = read_run(tmp_path).metrics
    assert metrics["train/loss"][0].tolist() == [50, 100, 150]
    np.testing.assert_array_equal(metrics["train/loss"][1], [2.5, np.nan, 1.25])
    assert [part.tolist() for part in metrics["val/loss"]] == [[100], [1.5]]


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match="is not a directory"):
        read_run(tmp_path / "none")
    with pytest.raises(UserError, match=r"neither metrics\.csv nor config\.yaml"):
        read_run(tmp_path)


def test_damaged_files_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: [")
    (tmp_path / "result.json").write_text('{"step": 1')
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "metrics.json").write_text('{"psnr": 20.0}')
    run = read_run(tmp_path)
    assert (run.config, run.result, run.last_step) == ({}, {}, 0)
    assert run.evaluations == {"evaluation": {"psnr": 20.0}}
    assert run.setting("trainer.max_steps") is None


def test_training_and_validation_share_a_chart() -> None:
    values = series(1.0, 2.0)
    names = ["train/loss", "val/loss", "train/learning_rate", "train/discriminator_learning_rate",
             "train/gradient_norm", "val/psnr"]  # fmt: skip
    charts = group_curves([record(metrics=dict.fromkeys(names, values))])
    columns = {title: [column for _, column, _ in curves] for title, curves in charts.items()}
    assert columns == {
        "loss": ["train/loss", "val/loss"],
        "psnr": ["val/psnr"],
        "learning rates": ["train/learning_rate", "train/discriminator_learning_rate"],
        "gradient norms": ["train/gradient_norm"],
    }


def test_thinning_keeps_extremes() -> None:
    values = np.sin(np.arange(50_000) / 1000)
    values[[12_345, 23_456]] = 9.0, -9.0
    steps, thin = thinned(np.arange(50_000), values)
    assert len(steps) <= 2000 and (np.diff(steps) > 0).all()
    assert {12_345, 23_456} <= set(steps.tolist()) and (values[steps] == thin).all()


def test_single_points_are_drawn(tmp_path: Path) -> None:
    def markers(*values: float) -> list[str]:
        (chart,) = curve_section([record(metrics={"train/loss": series(*values)})]).parts
        return [trace["mode"] for trace in json.loads(chart.figure)["data"]]

    assert markers(1.0) == ["lines+markers"] and markers(*range(9)) == ["lines"]
    pixels = []
    for values in ([1.0], [np.nan]):
        save_curves(record(metrics={"train/loss": series(*values)}), tmp_path / "curves.png")
        picture = np.asarray(Image.open(tmp_path / "curves.png").convert("RGB")).astype(int)
        blue = (picture - [59, 130, 246]).__abs__().sum(2) < 60
        pixels.append(int(blue.sum()))
    assert pixels[0] > pixels[1] == 0


def test_curves_are_a_picture(tmp_path: Path) -> None:
    metrics = {"train/loss": series(1.0, np.nan), "val/psnr": series(3.0)}
    save_curves(record(metrics=metrics), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    save_curves(record(), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


HEALTH = {"_target_": "taming.training.HealthWatch", "patience": 2, "min_codebook_usage": 0.5}


def test_the_warnings_of_the_training_are_repeated() -> None:
    usage = series(0.9, 0.4, 0.3, 0.2)
    norms = {"train/gradient_norm": series(1.0, 1.0, 1.0, 1.0)}
    run = record(
        metrics={"train/codebook_usage": usage, "train/codebook_perplexity": usage, **norms},
        config={"callbacks": {"health": HEALTH, "between": None}, "trainer": {"max_steps": 40}},
        result={"step": 40, "exported_step": 40, "interrupted": False},
    )
    (finding,) = findings(run, "Use fewer.")
    assert finding.level == "warning"
    assert finding.text.startswith("Step 30: the codebook is collapsing: 30.0%")
    assert finding.text.endswith("Use fewer.")


@pytest.mark.parametrize(("psnr", "is_low"), [(16.25, True), (20.0, False)])
def test_low_psnr_is_a_finding(psnr: float, is_low: bool) -> None:
    for run in (record(metrics={"val/psnr": series(30.0, psnr)}),
                record(result={"step": 1, "metrics": {"val/psnr": psnr}})):  # fmt: skip
        texts = [finding.text for finding in findings(run) if finding.level == "warning"]
        assert len(texts) == is_low
        if is_low:
            assert texts[0].startswith("Reconstructions are below 20 dB: the PSNR")


def test_how_a_run_ended() -> None:
    overfitting = {"_target_": "taming.training.OverfittingWatch", "patience": 1}
    run = record(
        metrics={"val/loss": series(1.0, 1.2), "val/gap": series(0.1, 0.6),
                 "train/loss": series(1.0, np.inf)},
        config={"callbacks": {"watch": overfitting}, "trainer": {"max_steps": 40}},
        result={"step": 20, "exported_step": 10, "metrics_step": 10, "interrupted": True},
    )  # fmt: skip
    texts = [finding.text for finding in findings(run)]
    assert texts[0] == "The training stopped after step 20 of 40."
    assert texts[1].startswith("The model is from step 10, the best")
    assert texts[2].startswith("train/loss is not a finite number at step 20")
    assert texts[3].startswith("Step 20: overfitting: since step 10")
    endless = record(result=run.result)
    assert findings(endless)[0].text == "The training stopped after step 20."
    unfinished = record(metrics=run.metrics, config={"trainer": {"max_steps": 40}})
    assert findings(unfinished)[0].text == "The run has not finished. Its last step is 20 of 40."


def test_a_resumed_run_is_unfinished_and_keeps_the_metrics_of_its_model() -> None:
    run = record(
        metrics={"val/psnr": series(25.0, 26.0, 27.0)},
        config={"trainer": {"max_steps": 40}},
        result={"step": 20, "exported_step": 20, "metrics": {"val/psnr": 26.0}},
    )
    assert [finding.text for finding in findings(run)] == [
        "The run has not finished. Its last step is 30 of 40.",
        "The model is from step 20, before the run was resumed.",
    ]
    assert run.last_metrics() == {"val/psnr": 26.0}
    assert run.latest_metrics() == {"val/psnr": 27.0}


def test_different_settings_are_a_table() -> None:
    first = record(config={"seed": 0, "model": {"levels": [8, 8], "kind": "a"}})
    second = RunRecord(Path("b"), "b", {"seed": 0, "model": {"levels": [8, 5]}})
    (table,) = configurations([first, second]).parts
    assert table.rows == [["model.levels", "8, 8", "8, 5"], ["model.kind", "a", "–"]]


def test_an_evaluation_is_next_to_its_protocol() -> None:
    numbers = {
        "fid": 12.34567,
        "contract": {"reference": {"images": 500}, "resize": "bicubic"},
        "samples": [{"guidance_scale": 1.0, "fid": 2.0, "by_class": []}],
        "reconstructions": {"psnr": 20.0, "by_class": [{"class": "cat", "psnr": None}]},
        "notes": ["Too few."],
    }
    tables = list(evaluations(record(evaluations={"evaluation": json.loads(json.dumps(numbers))})))
    first, samples, reconstructions, by_class, notes = tables
    assert first.title == "evaluation/metrics.json" and first.rows == [["fid", "12.35"]]
    assert first.side.rows == [["reference.images", "500"], ["resize", "bicubic"]]
    assert (samples.header, samples.rows) == (["guidance_scale", "fid"], [["1", "2"]])
    assert reconstructions.rows == [["psnr", "20"]]
    assert (by_class.title, by_class.rows) == ("reconstructions: by_class", [["cat", "–"]])
    assert notes.text == "Too few."


def test_numbers_have_four_digits() -> None:
    assert [as_text(x) for x in (True, None, 12345, 0.000123456, ["a", 1])] == [
        "yes", "–", "12,345", "0.0001235", "a, 1"]  # fmt: skip
    assert [duration(s) for s in (5, 65.4, 3900)] == ["5 s", "1 min 05 s", "1 h 05 min"]
