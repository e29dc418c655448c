"""The probe of glyphs agrees with the truth: the AUC with novel classes, which it does not see."""

import pytest
import torch

from eagc_ops import Subspace
from eagc_ops.evidence.energies import ENERGIES, rank_energies
from eagc_ops.evidence.probing import probe, separation, verdict
from eagc_ops.training.config import Glyphs
from eagc_ops.training.data import open_data
from eagc_ops.training.models.backbones import load_backbone

EACH = 10  # labelled images of a known class, and as many unlabelled ones of every class
DRAWS = {5: 4, 10: 4, 20: 3, 50: 1, 100: 1}  # known classes: how often they are drawn


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """(200 classes, 2 EACH, D), by the encoder that comes with the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        data = open_data("glyphs", glyphs=Glyphs(classes=200, known=100, per_class=2 * EACH))
    images = data.labelled.images
    pixels = torch.stack([data.test_transform(images.image(i)) for i in range(len(images))])
    encoder = load_backbone("vit_glyphs", image_size=data.image_size, channels=data.channels).eval()
    with torch.no_grad():
        z = torch.cat([encoder(part) for part in pixels.split(500)])
    return z[torch.from_numpy(images.targets).argsort(stable=True)].view(200, 2 * EACH, -1)


def drawn(features, known, seed):
    """Labelled rows and their labels, unlabelled rows of known classes, and of novel ones."""
    order = torch.randperm(200, generator=torch.Generator().manual_seed(seed))
    known, novel = features[order[:known]], features[order[known:]]
    label = torch.arange(len(known)).repeat_interleave(EACH)
    return known[:, :EACH].flatten(0, 1), label, known[:, EACH:].flatten(0, 1), novel[:, EACH:].flatten(0, 1)


@pytest.mark.parametrize("known", DRAWS)
def test_it_agrees_with_true_novel_classes(features, known):
    """Within 0.12 for each draw of known classes, few of which are no fair sample, and 0.06 in the mean."""
    found, true = [], []
    for seed in range(DRAWS[known]):
        labelled, label, seen, unseen = drawn(features, known, seed)
        candidate = probe(labelled, label, apertures=(2.0,), pca_sizes=()).best
        truth = separation(labelled, label, seen, unseen, Subspace.conceptor(labelled, 2.0))
        assert candidate.at_all.auc == pytest.approx(truth.auc, abs=0.12)
        assert candidate.at_all.eep_novel == pytest.approx(truth.eep_novel, abs=0.08)
        found.append(candidate.at_all.auc)
        true.append(truth.auc)
        acts = "EEP will act" in verdict(candidate.at_all)
        assert acts == ("EEP will act" in verdict(truth)), (candidate.at_all, truth)
    assert sum(found) / len(found) == pytest.approx(sum(true) / len(true), abs=0.06)


def test_with_more_known_classes_eep_does_less(features):
    found = {known: probe(*drawn(features, known, 0)[:2], pca_sizes=()) for known in (10, 100)}
    assert found[10].best.at_all.auc > found[100].best.at_all.auc + 0.15
    assert found[10].verdict.endswith("EEP will act")
    assert "EEP will do next to nothing" in found[100].verdict


def test_whitening_tells_more_with_many_known_classes(features):
    labelled, label, seen, unseen = drawn(features, 50, 0)
    names = ("conceptor, aperture 2", "whitened, ridge 1%, aperture 1")
    energies = {name: ENERGIES[name] for name in names}
    best, other = rank_energies(labelled, label, torch.cat([seen, unseen]), choices=3, energies=energies)
    assert (other.name, best.name) == names
    assert best.auc > other.auc + 0.05


@pytest.mark.parametrize(("known", "in_runs"), [(5, 0.33), (10, 0.32), (20, 0.30), (50, 0.24), (100, 0.17)])
def test_the_share_of_aga_is_that_of_runs_within_a_factor_of_two(features, known, in_runs):
    """Shares of `docs/evidence.csv`, by SimGCD with EAGC under `paper`."""
    found = probe(*drawn(features, known, 0)[:2], apertures=(2.0,), pca_sizes=()).aga
    assert in_runs / 2 < found < in_runs * 2
