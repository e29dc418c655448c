"""The demo: what it says about recorded numbers, and the whole of it in a very short form."""

import base64
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from eagc_ops import Subspace
from eagc_ops.evidence import frozen_features
from eagc_ops.evidence.commands.demo import main
from eagc_ops.evidence.late_energies import LateEnergy
from eagc_ops.evidence.probing import from_json, probe
from eagc_ops.evidence.studies import demo
from eagc_ops.evidence.studies.demo import probe_beside, summary, verdict
from eagc_ops.evidence.studies.image_sheets import categories
from eagc_ops.training import runs
from eagc_ops.training.config import Glyphs
from eagc_ops.training.data import open_data
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.report.measures import measures
from eagc_ops.training.report.runs import read_run

# All of six seeds of every variant
ALL = {
    "baseline": [70.0, 72.0, 71.0] * 2,
    "null": [70.5, 71.8, 71.0] * 2,
    "aga": [71.5, 71.0, 72.5] * 2,
    "eep": [70.2, 72.2, 71.3] * 2,
    "eagc": [73.0, 75.1, 74.2] * 2,
}


def records(**changed):
    def of(value):
        return {
            "all": value,
            "old": 90.0,
            "new": value - 5,
            "gdc_clean": value / 100,
            "soc_release": float("nan"),
        }

    values = ALL | changed
    return {variant: {seed: of(value) for seed, value in enumerate(values[variant])} for variant in values}


def test_the_tables_hold_means_and_paired_intervals():
    table, paired = summary(records()).split("Paired")
    (line,) = [line for line in table.splitlines() if line.startswith("(aga)")]
    assert f"{np.mean(ALL['aga']):.1f} ± {np.std(ALL['aga'], ddof=1):.1f}" in line
    assert line.rstrip().endswith("-")  # SOC was not measured
    (line,) = [line for line in paired.splitlines() if line.startswith("(eagc)")]
    # Differences 3.0, 3.1, 3.2 twice: t(0.975, 5) = 2.571, half the interval 2.571 * 0.0894 / sqrt(6) = 0.094
    assert "+3.1 [+3.0, +3.2]" in line
    assert "(baseline)" not in "".join(paired.splitlines()[1:])


def test_the_verdict_weighs_a_difference_against_interval_and_noise_floor():
    lines = verdict(records()).splitlines()
    said = {line.split()[0].rstrip(":"): line for line in lines[1:]}
    assert "by up to 0.5 points" in said["Noise"]
    assert [word for word in said if word in ("EAGC", "AGA", "EEP")] == ["EAGC", "AGA", "EEP"]
    assert "EAGC helps: All +3.1 points, 95% interval +3.0 to +3.2" in said["EAGC"]
    few = verdict({variant: dict(list(of.items())[:5]) for variant, of in records().items()})
    assert "EAGC: higher in these seeds, which are too few to say more. All +3.1 points" in few
    assert "AGA: no effect is shown." in said["AGA"] and "the interval has 0 in it" in said["AGA"]
    # EEP's interval is clear of 0, but the difference is smaller than what rounding does.
    assert "EEP: no effect is shown." in said["EEP"] and "no more than rounding does" in said["EEP"]
    single = verdict({variant: {0: of[0]} for variant, of in records().items()})
    assert "EAGC: no effect is shown. All +3.0 points: one seed has no interval." in single
    assert "nan" not in single and "  1 seed of 60" in single
    harmful = verdict(records(eagc=[60.0, 62.1, 61.0] * 2))
    assert "EAGC harms: All -10.0 points" in harmful
    loud = verdict(records(null=[80.0, 72.0, 71.0] * 2))
    assert "by up to 10.0 points" in loud and "helps" not in loud


def test_a_very_short_demo_and_its_second_run(tmp_path, capsys, monkeypatch):
    small = {"glyphs": Glyphs(classes=6, known=3, per_class=12), "reference_epochs": 1, "batch_size": 36}
    monkeypatch.setattr(demo, "SETTINGS", {**demo.SETTINGS, **small, "cache_views": 2})
    monkeypatch.setattr(demo, "open_data", lambda name: open_data(name, glyphs=small["glyphs"]))
    monkeypatch.setattr(
        demo, "VARIANTS", {name: demo.VARIANTS[name] for name in ("baseline", "null", "eagc")}
    )
    short = ["-o", str(tmp_path), "--seeds", "1", "--epochs", "1", "--jobs", "1"]
    assert main(short) == 0
    out = capsys.readouterr().out
    assert "3. 3 runs, 1 at a time" in out
    check_the_probe(tmp_path, out)
    for name in demo.VARIANTS:
        found = measures(read_run(tmp_path / "runs" / f"{name}-seed0"))
        (line,) = [line for line in out.split("Paired")[0].splitlines() if line.startswith(f"({name})")]
        assert re.findall(r"[\d.]+", line.split("  ", 1)[1])[:3] == [
            f"{found[key]:.1f}" for key in ("all", "old", "new")
        ]
    assert "VERDICT" in out
    with Image.open(tmp_path / "categories.png") as picture:
        assert picture.width > 500
    page = (tmp_path / "report.html").read_text()
    assert "(eagc) + EAGC" in page
    sheet = base64.b64encode((tmp_path / "categories.png").read_bytes()).decode()
    assert f"data:image/png;base64,{sheet}" in page
    said = re.search(r'<div class="verdict">\s*<p>(.*?)</p>', page)[1]
    assert said.startswith("(eagc) + EAGC against (baseline) SimGCD, warm start: All ")

    monkeypatch.setattr(runs, "train", None)  # a second run trains nothing, and probes nothing
    monkeypatch.setattr(frozen_features, "probe", None)
    assert main(short) == 0
    again = capsys.readouterr().out
    assert "0 runs, 1 at a time; 3 are finished and used again" in again
    assert again.split("Last epoch")[1].split("report:")[0] == out.split("Last epoch")[1].split("report:")[0]
    assert again.split("2. Reference")[0] == out.split("2. Reference")[0]
    assert main([*short, "--epochs", "2"]) == 2  # what is there does not fit, and --fresh is named
    assert "--fresh" in capsys.readouterr().err

    found = categories(tmp_path / "runs" / "eagc-seed0")
    data = open_data("glyphs", glyphs=small["glyphs"])
    assert sum(category.count for category in found) == len(data.unlabelled)
    assert {category.name for category in found} <= set(data.images.names)
    # If every image is of its category's character, so is All; the shares follow from the same predictions.
    right = sum(category.share * category.count for category in found) / len(data.unlabelled)
    assert right >= measures(read_run(tmp_path / "runs" / "eagc-seed0"))["all"] / 100 - 1e-6


def check_the_probe(home, out):
    """What the demo says of the probe before training, in its verdict and in the report."""
    found = from_json(json.loads((home / "probe.json").read_text()))
    assert (found.known, found.images) == (3, 18)  # half of 12 images of each known character
    said = found.conceptor(2.0).at_all
    before, after = out.split("VERDICT")
    assert re.search(rf"^1\. Probe of the 18 labelled .*: AUC {said.auc:.2f}; .*EEP", before, re.MULTILINE)
    assert f"mean tau {said.tau_known:.2f} known, {said.tau_novel:.2f} novel; EEP removes" in before
    assert before.index("1. Probe") < before.index("2. Reference") < before.index("3. 3 runs")
    experiment, (tensors, _) = (
        runs.trained(home / "runs" / "eagc-seed0"),
        load_checkpoint(home / "runs" / "eagc-seed0" / "last.safetensors"),
    )
    subspace = Subspace(tensors["eagc.matrix"], tensors["eagc.energy_ref"])
    with torch.no_grad():
        z, label = experiment.features.unlabelled()
    energy = ((z @ subspace.matrix) * z).sum(1) / z.square().sum(1)
    tau = (1 - energy / (subspace.energy_ref + 1e-6)).clamp(0, 1)
    auc = roc_auc_score(label >= 3, -energy)
    assert f"by the true characters: AUC {auc:.2f}, mean tau {tau[label < 3].mean():.2f} known, " in after
    page = (home / "report.html").read_text()
    assert "Probe before training" in page and found.verdict in page


def test_the_probe_stands_beside_what_training_showed():
    features = torch.randn(60, 16, generator=torch.Generator().manual_seed(0))
    found = probe(features, torch.arange(6).repeat_interleave(10), choices=2)
    at, after = found.conceptor(2.0).at_all, LateEnergy("conceptor", "end", 0.7, 0.1, 0.3)
    shares = {0: {"eep_share": 0.02, "aga_share": 0.1}, 1: {"eep_share": 0.04, "aga_share": 0.3}}
    said, shown, removed, _ = probe_beside(found, 2.0, after, {"eagc": shares}).splitlines()
    assert f"AUC {at.auc:.2f}, mean tau {at.tau_known:.2f} known, {at.tau_novel:.2f} novel" in said
    assert (
        f"EEP removes {at.eep_known:.1%} and {at.eep_novel:.1%} of" in said
        and f"is {found.aga:.0%} of" in said
    )
    assert "AUC 0.70, mean tau 0.10 known, 0.30 novel at the end" in shown
    assert "EEP removed 3.0 ± 1.4% of" in removed and "AGA's term was 20.0 ± 14.1% of" in removed


@pytest.mark.parametrize("variant", ["aga", "eep", "eagc", "null", "baseline"])
def test_variants_differ_in_the_operator_alone(variant, tmp_path):
    ours, base = (demo._config(tmp_path, name, 0, 2).recipe() for name in (variant, "baseline"))
    assert {name for name in ours if ours[name] != base[name]} <= {"eagc", "lambda_a", "lambda_p"}
