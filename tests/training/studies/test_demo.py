"""The demo: what it says about recorded numbers, its gate, and the whole of it in a very short form."""

from dataclasses import replace

import numpy as np

from eagc_ops.training import runs
from eagc_ops.training.data import ImageSubset, open_data
from eagc_ops.training.engine import experiment
from eagc_ops.training.engine import pretraining as pretrain
from eagc_ops.training.models.backbones import load_backbone
from eagc_ops.training.studies import demo
from eagc_ops.training.studies.demo import conclusions, main, summary

# Three seeds of every variant, as a run recorded them (rounded)
ALL = {
    "a": [80.1, 85.2, 79.9],
    "b": [88.0, 92.1, 90.0],
    "c": [87.5, 92.5, 90.5],
    "d": [88.25, 92.6, 91.0],
    "e": [87.0, 91.0, 88.5],
}
GDC = {
    "a": [0.30, 0.40, 0.35],
    "b": [0.25, 0.35, 0.30],
    "c": [0.20, 0.30, 0.28],
    "d": [0.25, 0.36, 0.29],
    "e": [0.15, 0.33, 0.20],
}


def records():
    def of(variant, seed):
        values = {
            "all": ALL[variant][seed],
            "old": 97.0,
            "new": ALL[variant][seed] - 5,
            "gdc_clean": GDC[variant][seed],
        }
        return {
            **values,
            "gdc_release": GDC[variant][seed] / 2,
            "soc_release": float("nan"),
            "seconds": 2.0 + seed,
        }

    return {variant: {seed: of(variant, seed) for seed in range(3)} for variant in "abcde"}


def cells(line):
    return [cell.strip() for cell in line.replace(" ± ", "±").split("  ") if cell.strip()]


def test_the_tables_hold_means_deviations_and_paired_differences():
    lines = summary(records())
    table, paired = lines[1:7], lines[9:14]
    head = cells(table[0])
    assert head[:4] == ["All %", "Old %", "New %", "GDC clean"]
    for line, variant in zip(table[1:], "abcde"):
        name, *values = cells(line)
        assert name.startswith(f"({variant})")
        assert values[0] == f"{np.mean(ALL[variant]):.1f}±{np.std(ALL[variant], ddof=1):.1f}"
        assert values[3] == f"{np.mean(GDC[variant]):.3f}±{np.std(GDC[variant], ddof=1):.3f}"
        assert values[head.index("SOC")] == "-"  # not measured
        assert values[-1] == "3.00±1.00"
    assert cells(paired[0]) == head
    for line, variant in zip(paired[1:], "acde"):
        name, *values = cells(line)
        assert name.startswith(f"({variant})")
        for column, of in ((0, ALL), (3, GDC)):
            difference = np.array(of[variant]) - np.array(
                of["b"]
            )  # seed by seed: its deviation is not that of the means
            digits = 1 if column == 0 else 3
            assert values[column] == f"{difference.mean():+.{digits}f}±{difference.std(ddof=1):.{digits}f}"


def test_the_conclusions_follow_the_signs():
    text = "\n".join(conclusions(records()))
    said = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert "(c) mixed (2 up, 1 down), (d) up on all 3 seeds, (e) down on all 3 seeds" in said["All"]
    assert "(c) down on all 3 seeds, (d) mixed (1 up, 1 down), (e) down on all 3 seeds" in text
    assert "(e) not measured" in said["SOC"]
    assert "(a)" not in text.split("What they do not show")[0]
    assert "by chance with probability 25%" in text


def test_a_weak_encoder_stops_the_demo(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        pretrain, "pretrain", lambda pixels, epochs: load_backbone("vit_digits", image_size=16, channels=1)
    )
    assert main(["-o", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "the encoder is too weak" in err
    assert "< 90%" in err
    assert not (tmp_path / "runs").exists()


def test_a_very_short_demo_and_its_second_run(tmp_path, capsys, monkeypatch):
    data = open_data("digits")

    def part(of, count):
        return ImageSubset(of.images, of.uq_idx[:count].numpy(), np.arange(10))

    few = replace(data, labelled=part(data.labelled, 90), unlabelled=part(data.unlabelled, 270))
    for module in (demo, experiment):
        monkeypatch.setattr(module, "open_data", lambda *_, **__: few)
    monkeypatch.setattr(pretrain, "NEEDED", 0.1)
    monkeypatch.setattr(demo, "VARIANTS", {name: demo.VARIANTS[name] for name in "be"})
    monkeypatch.setattr(
        demo,
        "SETTINGS",
        {
            **demo.SETTINGS,
            "reference_epochs": 1,
            "cache_views": 2,
            "batch_size": 90,
            "diagnose": {"every": 2},
        },
    )
    short = ["-o", str(tmp_path), "--seeds", "1", "--epochs", "1", "--pretrain-epochs", "1", "--jobs", "1"]
    assert main(short) == 0
    out = capsys.readouterr().out
    assert "3. 2 runs, 1 at a time" in out
    for name, folder in (("b", "b-seed0"), ("e", "e-seed0")):
        run = demo.read_run(tmp_path / "runs" / folder)
        found = demo.measures(run)
        (line,) = [line for line in out.split("Paired")[0].splitlines() if line.startswith(f"({name})")]
        assert cells(line)[1:4] == [f"{found[key]:.1f}" for key in ("all", "old", "new")]
        assert cells(line)[4:7] == [
            f"{found[key]:.3f}" for key in ("gdc_clean", "gdc_release", "soc_release")
        ]
        assert len(run.lines["diagnosis"]) == 2
        assert all(f"WARNING {folder}: {text}" in out for text in run.result["warnings"])
    assert f"report: {tmp_path / 'report.html'}" in out
    assert "(e) b + EAGC" in (tmp_path / "report.html").read_text()

    monkeypatch.setattr(pretrain, "pretrain", None)  # a second run pretrains and trains nothing
    monkeypatch.setattr(runs, "train", None)
    assert main(short) == 0
    again = capsys.readouterr().out
    assert "used again" in again
    assert "0 runs, 1 at a time; 2 are finished and used again" in again
    assert again.split("Last epoch")[1].split("report:")[0] == out.split("Last epoch")[1].split("report:")[0]
    assert main([*short, "--epochs", "2"]) == 2  # what is there does not fit, and --fresh is named
    assert "--fresh" in capsys.readouterr().err
