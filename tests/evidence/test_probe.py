"""The probe where the truth is known, its choices and shares by hand, the command, and the report."""

import json

import pytest
import small_runs
import torch
from commands import call

from eagc_ops import Subspace, evidence
from eagc_ops.evidence import frozen_features as module
from eagc_ops.evidence import probing as probe_module
from eagc_ops.evidence.energies import ENERGIES, nearest_class, rank_energies, whitened
from eagc_ops.evidence.probe_text import NO_ACCURACY, probe_of
from eagc_ops.evidence.probing import (
    APERTURES,
    choices_of,
    from_json,
    left,
    probe,
    separation,
    verdict,
)
from eagc_ops.training.config import ConfigError
from eagc_ops.training.report.page import write_report
from eagc_ops.training.runs import train

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts")


def planted(classes=8, each=20, width=4, noise=0.0):
    """Every class has a subspace of its own, orthogonal to the others."""
    generator = torch.Generator().manual_seed(0)
    z = noise * torch.randn(classes, each, classes * width, generator=generator)
    for c in range(classes):
        z[c, :, c * width : (c + 1) * width] += torch.randn(each, width, generator=generator)
    return z.flatten(0, 1), torch.arange(classes).repeat_interleave(each)


def blobs(known, novel=30, each=10, dim=48, seed=0):
    """Classes around random centers in a space with a falling spectrum: (known, labelled), the unlabelled."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, dim + 1) ** -0.5
    centers = 2 * torch.randn(known + novel, 1, dim, generator=generator)
    z = scale * (1 + centers + 1.5 * torch.randn(known + novel, 2 * each, dim, generator=generator))
    label = torch.arange(known).repeat_interleave(each)
    return z[:known, :each].flatten(0, 1), label, z[:known, each:].flatten(0, 1), z[known:].flatten(0, 1)


def test_orthogonal_subspaces_are_told_apart_without_error():
    found = evidence.probe(*planted())
    for candidate in found.candidates[: len(APERTURES)]:
        assert candidate.at_all.auc == candidate.at_most.auc == candidate.at_half.auc == 1
        assert candidate.at_all.tau_novel > 0.999
    assert found.best.at_all.tau_known < 0.5
    assert found.verdict == "tau tells novel from known: AUC 1.00; EEP will act"


def test_isotropic_features_tell_nothing():
    generator = torch.Generator().manual_seed(0)
    found = probe(torch.randn(800, 24, generator=generator), torch.arange(800) % 20)
    assert all(abs(candidate.at_all.auc - 0.5) < 0.04 for candidate in found.candidates)
    assert 22 < found.effective_rank <= 24
    assert "EEP will do next to nothing; fewer known classes or other features" in found.verdict


@pytest.mark.parametrize("known", [5, 20, 60])
def test_it_agrees_with_true_novel_classes(known):
    """From labelled rows alone: within 0.08 of the AUC of unlabelled rows."""
    features, label, seen, unseen = blobs(known)
    found = probe(features, label, apertures=(1.0, 2.0, 10.0), pca_sizes=())
    for candidate in found.candidates:
        true = separation(features, label, seen, unseen, Subspace.conceptor(features, candidate.size))
        assert candidate.at_all.auc == pytest.approx(true.auc, abs=0.08), candidate
        assert candidate.at_all.tau_known == pytest.approx(true.tau_known, abs=0.05)


def test_more_known_classes_are_harder_and_the_probe_says_so():
    """The AUC with all known classes is below the AUC that fewer of them have."""
    features, label, seen, unseen = blobs(20)
    candidate = probe(features, label, apertures=(2.0,), pca_sizes=()).candidates[0]
    true = separation(features, label, seen, unseen, Subspace.conceptor(features, 2.0)).auc
    assert candidate.at_half.auc > candidate.at_most.auc > candidate.at_all.auc
    assert abs(candidate.at_all.auc - true) < abs(candidate.at_half.auc - true)


def test_a_choice_keeps_known_rows_from_the_fit_and_every_class_plays_once_in_a_round():
    label = torch.arange(60) % 10
    assert (left(10), left(5), left(4), left(3)) == ((8, 4), (4, 2), (3, 3), (2, 2))
    played = []
    for whole, half in choices_of(label, 10, seed=3):
        for choice, count in ((whole, 8), (half, 4)):
            fit, known, novel = (set(rows.tolist()) for rows in choice)
            assert not (fit & known or fit & novel or known & novel)
            classes = [set(label[list(rows)].tolist()) for rows in (fit, known, novel)]
            assert classes[0] == classes[1]
            assert (len(classes[0]), len(classes[2])) == (count, 2)
            assert (len(fit), len(known), len(novel)) == (5 * count, count, 12)
        assert torch.equal(whole.novel, half.novel)
        played += sorted(classes[2])
    assert sorted(played[:10]) == sorted(played[10:]) == list(range(10))
    assert played[:10] != played[10:]  # another round has other pairs


def test_more_dimensions_than_rows_are_measured_in_the_span_of_the_rows(monkeypatch):
    features, label, *_ = blobs(6, each=10, dim=90)  # 60 rows, of which 40 and 16 are in a fit
    found = probe(features, label)
    widths = set()

    def as_they_are(features, rows):
        widths.add(in_span(features, rows).shape[1])
        return features

    in_span = probe_module._in_span
    monkeypatch.setattr(probe_module, "_in_span", as_they_are)
    plain = probe(features, label)
    assert widths == {41, 17}
    assert sum(0.02 < candidate.at_most.tau_novel < 0.98 for candidate in plain.candidates) >= 4
    assert found.aga == plain.aga
    for ours, theirs in zip(found.candidates, plain.candidates, strict=True):
        for name in ("at_all", "at_most", "at_half"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=2e-6), (ours, name)


def test_a_pca_of_fewer_rows_than_directions_is_their_span():
    features, label, *_ = blobs(5, each=10, dim=90)
    for choice, smaller in choices_of(label, 1, seed=0):
        assert (len(choice.fit), len(smaller.fit)) == (32, 16)
    found = probe(features, label, apertures=(2.0,), pca_sizes=(16, 24), choices=1).candidates
    assert [candidate.size for candidate in found] == [2.0, 16.0, 24.0]
    assert found[1].at_half == pytest.approx(found[2].at_half, abs=1e-6)  # 16 rows: the same span
    assert found[1].at_most != pytest.approx(found[2].at_most, abs=1e-3)


def test_the_seed_decides_the_choices():
    features, label, *_ = blobs(6, each=5)
    settings = {"apertures": (2.0,), "pca_sizes": (), "choices": 3}
    assert probe(features, label, **settings) == probe(features, label, **settings)
    assert probe(features, label, **settings) != probe(features, label, seed=1, **settings)
    shifted = label * 7 - 100  # names of classes mean nothing
    assert probe(features, shifted, **settings) == probe(features, label, **settings)


def test_shares_of_the_gradient_are_those_of_the_operators_formulas():
    features, label, seen, unseen = (x.double() if x.is_floating_point() else x for x in blobs(6, novel=4))
    subspace = Subspace.conceptor(features, 2.0)
    found = separation(features, label, seen, unseen, subspace, lambda_p=0.8)
    z = torch.cat([seen, unseen]).float().double().requires_grad_()
    means = torch.stack([features.float().double()[label == c].mean(0) for c in range(6)])
    logits = torch.cosine_similarity(z[:, None], means[None], dim=2) / 0.1
    torch.nn.functional.cross_entropy(logits, logits.argmax(1), reduction="sum").backward()
    S = subspace.matrix.double()
    with torch.no_grad():
        energy = torch.einsum("nd,de,ne->n", z, S, z) / (z * z).sum(1)
        tau = (1 - energy / (subspace.energy_ref.double() + 1e-6)).clamp(0, 1)
        removed = 0.8 * tau * (z.grad @ S).norm(dim=1)
        shares = [
            removed[i].sum() / z.grad[i].norm(dim=1).sum() for i in (slice(len(seen)), slice(len(seen), None))
        ]
    assert 0.02 < shares[0] < shares[1]
    expected = [tau[: len(seen)].mean(), tau[len(seen) :].mean(), *shares]
    assert found[1:] == pytest.approx([float(x) for x in expected], rel=1e-5)
    pairs = energy[: len(seen), None] > energy[None, len(seen) :]
    assert found.auc == pytest.approx(pairs.double().mean().item(), abs=1e-9)


def test_strengths_scale_the_shares():
    features, label, *_ = blobs(6, each=6)
    settings = {"apertures": (2.0,), "pca_sizes": (), "choices": 2}
    one = probe(features, label, lambda_a=0.5, lambda_p=0.4, **settings)
    two = probe(features, label, lambda_a=1.0, lambda_p=0.8, **settings)
    assert two.aga == pytest.approx(2 * one.aga, rel=1e-6)
    assert two.candidates[0].at_most.eep_novel == pytest.approx(2 * one.candidates[0].at_most.eep_novel)
    assert one.aga > 0.001


def test_the_verdict_needs_energies_that_tell_and_a_gradient_that_changes():
    best = probe(*planted(), apertures=(10.0,), pca_sizes=(), choices=2).best.at_all
    assert verdict(best._replace(auc=0.7)).endswith("AUC 0.70; EEP will act weakly")
    assert "next to nothing: it removes 1.0% of the gradient" in verdict(best._replace(eep_novel=0.01))
    assert verdict(best._replace(auc=0.56)).startswith("tau does not tell novel from known: AUC 0.56")


def test_many_rows_are_thinned_alike_in_every_class():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9000, 4, generator=generator)
    found = probe(features, torch.arange(9000) % 3, apertures=(2.0,), pca_sizes=(), choices=1)
    assert found.images == 3000


ERRORS = {
    "two classes": (
        torch.randn(8, 3),
        torch.arange(8) % 2,
        "labels must have at least 3 known classes, got 2",
    ),
    "one image": (
        torch.randn(7, 3),
        torch.tensor([0, 0, 1, 1, 2, 2, 5]),
        "at least 2 images of every class, but 1 have one, the first is class 5",
    ),
    "not finite": (
        torch.full((6, 2), torch.nan),
        torch.arange(6) % 3,
        "features must be finite, but 6 of 6 rows hold NaN",
    ),
    "shape": (
        torch.randn(6),
        torch.arange(6) % 3,
        r"features must be a floating tensor \(N, D\), got \(6,\)",
    ),
    "labels": (torch.randn(6, 2), torch.arange(5) % 3, r"labels must be an integer tensor \(6,\)"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_probed_is_refused_in_one_line(name):
    features, labels, words = ERRORS[name]
    for measure in (probe, rank_energies):
        with pytest.raises(ValueError, match=words) as error:
            measure(features, labels)
        assert "\n" not in str(error.value)


def test_whitening_sees_past_a_direction_that_all_classes_share():
    """Large variance in shared directions hides the classes from the plain conceptor."""
    z, label = planted(classes=10, each=16, width=2, noise=0.1)
    generator = torch.Generator().manual_seed(1)
    z = torch.cat([z, 3 * torch.randn(len(z), 4, generator=generator)], 1)
    energies = {"plain": ENERGIES["conceptor, aperture 1"], "whitened": whitened(0.01, 1.0)}
    found = {energy.name: energy for energy in rank_energies(z, label, choices=5, energies=energies)}
    assert found["plain"].auc < 0.7
    assert found["whitened"].auc > 0.9
    assert found["whitened"].tau_novel > found["whitened"].tau_known + 0.1


def test_the_nearest_class_is_seen_where_known_classes_fill_the_space():
    """More classes than directions: together they are isotropic, each alone is a line."""
    generator = torch.Generator().manual_seed(0)
    lines = torch.nn.functional.normalize(torch.randn(40, 1, 8, generator=generator), dim=2)
    z = (lines * torch.randn(40, 8, 1, generator=generator)).flatten(0, 1)
    energies = {"plain": ENERGIES["conceptor, aperture 2"], "nearest": nearest_class(2.0)}
    best, other = rank_energies(z, torch.arange(40).repeat_interleave(8), choices=5, energies=energies)
    assert (best.name, other.name) == ("nearest", "plain")
    assert best.auc > 0.9
    assert other.auc < 0.8


@pytest.fixture
def words(data, tmp_path, monkeypatch):
    """The options that name a small folder of images with 3 known classes."""
    monkeypatch.chdir(tmp_path)
    names = {"root": "--root", "split_file": "--split-file", "weights": "--weights"}
    places = [word for name, option in names.items() for word in (option, data[name])]
    return [
        "--dataset",
        "folder",
        "--image-size",
        "16",
        "--backbone",
        "vit_digits",
        "--device",
        "cpu",
        *places,
    ]


def test_the_command_keeps_the_features_and_writes_the_probe(words, tmp_path, capsys, monkeypatch):
    code, out, _ = call(capsys, "probe", *words, "-o", "here/probe.json")
    assert code == 0
    assert "18 labelled images of 3 known classes, D = 96, effective rank" in out
    assert "too few to extrapolate to 3" in out
    found = from_json(json.loads((tmp_path / "here" / "probe.json").read_text()))
    assert found.verdict in out
    assert NO_ACCURACY in out and NO_ACCURACY.startswith("This does not predict accuracy")
    (kept,) = (tmp_path / "runs" / "features").glob("*.safetensors")

    encoded = []
    encode = module.pretrained_features
    monkeypatch.setattr(module, "pretrained_features", lambda *a, **k: encoded.append(1) or encode(*a, **k))
    assert call(capsys, "probe", *words)[1] in out  # the same, from the file
    assert not encoded
    ranked = call(capsys, "probe", *words, "--energies")[1]
    assert "nearest class, aperture 1" in ranked
    assert "the whitened energy with ridge 1% and aperture 1 (--energy whitened)" in ranked
    assert encoded  # unlabelled images too
    assert len(list(kept.parent.glob("*.safetensors"))) == 2


def test_a_folder_of_labelled_images_needs_no_split(words, capsys):
    at = words.index("--split-file")
    alone = words[:at] + words[at + 2 :]
    code, out, _ = call(capsys, "probe", *alone)
    assert code == 0
    assert "60 labelled images of 5 known classes, D = 96, effective rank" in out
    root = words[words.index("--root") + 1]
    assert out.endswith(f"only runs can show: eagc study --root {root} --dry-run\n")
    for refused in (["probe", *alone, "--energies"], ["train", *alone, "--batch-size", "30"]):
        code, _, error = call(capsys, *refused)  # they need unlabelled images
        assert code == 2
        assert "--split-file is missing" in error


def test_changed_images_are_encoded_again(words, tmp_path, capsys):
    call(capsys, "probe", *words)
    labelled = next(iter((tmp_path / "runs" / "features").glob("*.safetensors")))
    root = words[words.index("--root") + 1]
    for file in small_runs.Path(root).rglob("*.png"):
        file.write_bytes(file.read_bytes())  # the same pixels at another time
    call(capsys, "probe", *words)
    assert len(list(labelled.parent.glob("*.safetensors"))) == 2


def test_the_report_shows_the_probe_of_a_run(data, words, tmp_path, capsys):
    train(small_runs.small_config(data, epochs=1), tmp_path / "run")
    assert "Probe before training" not in write_report([tmp_path / "run"], tmp_path).read_text()
    call(capsys, "probe", *words, "-o", "run/probe.json")
    page = write_report([tmp_path / "run"], tmp_path).read_text()
    assert "Probe before training" in page
    assert probe_of([tmp_path / "run"]).verdict in page
    assert NO_ACCURACY in page
    (tmp_path / "run" / "probe.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"probe\.json cannot be read .* write it again with eagc probe"):
        probe_of([tmp_path / "run"])
