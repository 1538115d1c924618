"""How often intervals hold the truth, on few data sets of one small cell."""

import pytest

from benchmarks import coverage


def test_quick_benchmark_prints_old_and_new_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    coverage.main(["--quick"])
    sections = capsys.readouterr().out.split("\n\n")
    noise, means, distances = (
        [line.split() for line in section.splitlines()] for section in sections[1:4]
    )
    # 3 σ⁴ / 16 for the noise σ; without pairs, the estimate is below zero
    assert [row[:2] for row in noise[2:]] == [
        ["0.02", "3e-08"],
        ["0.1", "1.9e-05"],
        ["0.3", "0.0015"],
    ]
    assert all(float(row[2]) < 0 for row in noise[2:])
    assert all(float(row[4]) < float(row[1]) < float(row[6]) for row in noise[2:])
    assert [row[1] for row in means[2:]] == ["mean", "share", "share", "share"]
    frechet_pairs = next(row for row in distances if row[2:4] == ["pairs", "Fréchet"])
    before, after = (float(frechet_pairs[i].rstrip(",")) for i in (6, 9))
    assert before > 5 and 0.5 < after < 2  # reported deviation over the true one
