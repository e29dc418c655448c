"""SelEx: its terms against the published formulas in fp64 Python, its clusters, and whole runs."""

import copy
import dataclasses
import json
import math

import pytest
import small_runs
import torch
from no_waiting import NoWaiting
from torch.nn import functional as F

from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.config import ConfigError, resolve
from eagc_ops.training.data import KeyedViews, draw_key, open_data
from eagc_ops.training.data.loaders import Draw
from eagc_ops.training.engine import experiment as experiment_module
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.loop import Callback
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods import METHODS, Problem, Rows, register, selex
from eagc_ops.training.methods.clustering import Clusters
from eagc_ops.training.methods.selex import (
    SelEx,
    distances,
    far_pairs,
    hierarchy,
    radii,
    soft_info_nce,
    soft_targets,
)
from eagc_ops.training.runs import evaluate, resume, train

DATASETS = ("cub", "scars", "aircraft", "cifar100", "imagenet100", "herbarium19")
IMAGES = 6
ROWS = 2 * IMAGES
pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")


def make(problem=None, preset="paper", dataset="cub", **switches):
    torch.manual_seed(0)
    problem = problem or Problem(16, 6, 10, 20, 3, 8, 4)
    return METHODS["selex"](resolve("selex", dataset, preset, **{"embedding_dim": 40, **switches}), problem)


# The hierarchy ----------------------------------------------------------------------------------------------


def test_levels_of_the_data_sets():
    assert hierarchy(80, 20) == [(80, 20), (40, 10), (20, 5), (10, 2), (5, 1), (2, 1), (1, 1)]
    sizes = {
        "CUB": (100, 100),
        "Cars": (98, 98),
        "Aircraft": (50, 50),
        "IN-100": (50, 50),
        "Herbarium19": (341, 342),
    }
    assert {name: len(hierarchy(*size)) for name, size in sizes.items()} == {
        "CUB": 7,
        "Cars": 7,
        "Aircraft": 6,
        "IN-100": 6,
        "Herbarium19": 9,
    }
    assert hierarchy(1, 4) == [(1, 4)]
    assert hierarchy(3, 0) == [(3, 0), (1, 1)]


def test_radius_is_half_the_way_to_the_nearest_other_prototype():
    prototypes = torch.randn(7, 4, dtype=torch.float64)
    for i, r in enumerate(radii(prototypes)):
        assert r.item() == pytest.approx(
            min((prototypes[i] - prototypes[j]).norm().item() for j in range(7) if j != i) / 2, rel=1e-9
        )


class Plan:
    """In place of features: unit blobs of `classes` classes, `labelled` first, in the merged set's order."""

    def __init__(self, known=4, novel=4, each=12, dim=16, spread=0.12):
        g = torch.Generator().manual_seed(2)
        centers = F.normalize(torch.randn(known + novel, dim, generator=g), dim=1)
        y = torch.arange(known + novel).repeat_interleave(each)
        first = (y < known) & (torch.arange(len(y)) % 2 == 0)
        rest = (~first).nonzero().flatten()
        y = torch.cat(
            [y[first], y[rest[torch.randperm(len(rest), generator=g)]]]
        )  # unlabelled images of all classes in any order
        self.y, self.known, self.labelled_count = y, known, int(first.sum())
        self.z = 5 * (centers[y] + spread * torch.randn(len(y), dim, generator=g))
        self.label = torch.where(torch.arange(len(y)) < self.labelled_count, y, -1)
        self.uq_idx = torch.randperm(len(y), generator=g)  # positions in the data set, not in the merged one
        self.problem = Problem(dim, known, known + novel, len(y), 3, 8, 4)

    def augmented(self, epoch):
        return self.z + epoch, self.label, self.uq_idx

    def labelled(self):
        return self.z[: self.labelled_count], self.y[: self.labelled_count]

    def unlabelled(self):
        return self.z[self.labelled_count :], torch.full((len(self.y) - self.labelled_count,), 999)


def test_start_of_an_epoch_stores_clusters_by_image_and_radii_by_cluster():
    plan = Plan()
    method = make(plan.problem)
    method.start_epoch(0, plan)
    assert method.levels == [(4, 4), (2, 2), (1, 1)]
    clusters = method.clusters[:, plan.uq_idx]  # in the order of the merged set
    assert torch.equal(
        clusters[0][plan.y < 4], plan.y[plan.y < 4]
    )  # level 0: known classes under their own number
    for level, (old, new) in enumerate(method.levels):
        assert clusters[level].min() >= 0
        assert clusters[level].max() < old + new
        # known images are held together by the group of their class
        groups = [clusters[level][plan.y == c].unique() for c in range(4)]
        assert all(len(group) == 1 and group.item() < old for group in groups)
        assert len(torch.cat(groups).unique()) == old
    # level 0 from its definition: cluster means of unit features, half the distance to the nearest other
    unit = F.normalize(plan.z, dim=1)
    means = torch.stack([unit[clusters[0] == c].mean(0) for c in range(8)])
    torch.testing.assert_close(method.radii[0], radii(means), rtol=1e-4, atol=1e-5)
    assert not method.radii[1, 4:].any()  # level 1 has 4 clusters


def test_coarse_groups_are_k_means_of_the_known_prototypes_of_level_0():
    from sklearn.cluster import KMeans

    plan = Plan(known=8, novel=3)
    method = make(plan.problem)
    method.start_epoch(0, plan)
    clusters, unit = method.clusters[:, plan.uq_idx], F.normalize(plan.z, dim=1)
    prototypes = torch.stack([unit[clusters[0] == c].mean(0) for c in range(8)]).double().numpy()
    for level, (old, _) in enumerate(method.levels[1:], 1):
        groups = KMeans(old, n_init=10, random_state=0).fit_predict(prototypes)
        expected = {tuple(c for c in range(8) if groups[c] == g) for g in range(old)}
        found = [clusters[level][clusters[0] == c].unique().tolist() for c in range(8)]
        assert {tuple(c for c in range(8) if found[c] == [g]) for g in range(old)} == expected


def test_index_order_of_coarse_labels():
    """Published: position p of [predicted known, novel] is read as position p of [labelled, unlabelled]."""
    plan = Plan()
    x = F.normalize(plan.z, dim=1)
    right, published = (
        make(plan.problem, published_order=order).cluster_hierarchy(
            x, plan.label, torch.Generator().manual_seed(1)
        )
        for order in (False, True)
    )
    known = [i for i in range(len(x)) if right[0].labels[i] < 4]
    order = known + [i for i in range(len(x)) if right[0].labels[i] >= 4]
    assert order != list(range(len(x)))
    assert torch.equal(right[0].labels, published[0].labels)
    for level in (1, 2):
        expected = [right[level].labels[order[p]].item() for p in range(len(x))]
        assert published[level].labels.tolist() == expected
        n = plan.labelled_count
        assert torch.equal(
            published[level].labels[:n], right[level].labels[:n]
        )  # labelled images are right either way
        assert not torch.equal(published[level].labels[n:], right[level].labels[n:])
        assert torch.equal(published[level].centers, right[level].centers)


@pytest.mark.parametrize(
    ("balanced", "sizes", "published"),
    [(True, [12, 24, 48, 12], True), (True, [12, 24, 48, 12], False), (False, [None] * 4, True)],
)
def test_clustering_settings(monkeypatch, balanced, sizes, published):
    calls, original = [], selex.semi_supervised_kmeans
    monkeypatch.setattr(
        selex, "semi_supervised_kmeans", lambda *a, **o: calls.append((a, o)) or original(*a, **o)
    )
    plan = Plan()
    method = make(plan.problem, balanced=balanced, published_balancing=published)
    method.start_epoch(0, plan)
    predicted = method.predict(plan)
    assert [o["cluster_size"] for _, o in calls] == sizes
    assert [a[2] for a, _ in calls] == [8, 4, 2, 8]
    assert [o["restarts"] for _, o in calls] == [1, 1, 1, 10]
    assert [o["iterations"] for _, o in calls] == [10] * 4
    assert [o["published_balancing"] for _, o in calls] == [published] * 4
    # the evaluation: labelled images fixed, the truth of the others not seen, unit features, labels of the
    # unlabelled ones returned
    x, fixed, _ = calls[-1][0]
    assert torch.equal(fixed, plan.label)
    torch.testing.assert_close(x, F.normalize(plan.z, dim=1))
    assert torch.equal(
        predicted[plan.y[plan.labelled_count :] < 4],
        plan.y[plan.labelled_count :][plan.y[plan.labelled_count :] < 4],
    )


def test_clustering_draws_depend_on_seed_and_epoch():
    plan = Plan(spread=0.5)

    def labels(epoch, seed=0):
        method = make(plan.problem, seed=seed)
        plan.augmented = lambda _: (plan.z, plan.label, plan.uq_idx)
        method.start_epoch(epoch, plan)
        return method.clusters

    assert torch.equal(labels(0), labels(0))
    assert not torch.equal(labels(0), labels(1))
    assert not torch.equal(labels(0), labels(0, seed=1))


def test_features_after_the_mlp_head_are_clustered():
    plan = Plan()
    method = make(plan.problem, mlp_head_layers=2)
    x = method.unit_features(plan.z)
    torch.testing.assert_close(x, F.normalize(method.mlp_head(plan.z), dim=1))
    assert x.min() >= 0


# The terms --------------------------------------------------------------------------------------------------


@pytest.fixture
def batch():
    """Embeddings, clustered features, radii of every row at three levels; view-major.

    Distances lie on both sides of the diameters.
    """
    g = torch.Generator().manual_seed(0)
    f = F.normalize(torch.randn(ROWS, 40, generator=g, dtype=torch.float64), dim=1)
    u = torch.randn(ROWS, 3, generator=g, dtype=torch.float64)
    radius = 0.4 + torch.rand(3, IMAGES, generator=g, dtype=torch.float64).repeat(1, 2)
    return f, u, radius


def norm(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))


def loop_far(u, radius):
    m = [
        [
            sum(2.0**-i * (norm(u[a], u[b]) > 2 * radius[i][b]) for i in range(len(radius)))
            for b in range(len(u))
        ]
        for a in range(len(u))
    ]
    low, high = min(map(min, m)), max(map(max, m))
    return [[(v - low) / (high - low + 1e-7) for v in row] for row in m]


def loop_self(f, far, alpha, temperature=1.0):
    n, total = len(f), 0.0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        normaliser = sum(math.exp(-norm(f[i], f[j]) / temperature) for j in others)
        for j in others:
            target = (1 - alpha) * (j == (i + n // 2) % n) + alpha * far[i][j] / sum(
                far[j]
            )  # column j by the sum of ROW j
            total -= target * (-norm(f[i], f[j]) / temperature - math.log(normaliser))
    return total / n


def loop_sup_con(f, label, rows, temperature=0.07):
    anchors = []
    for i in rows:
        others = [j for j in rows if j != i]
        normaliser = sum(math.exp(-norm(f[i], f[j]) / temperature) for j in others)
        positives = [j for j in others if label[j] == label[i]]
        terms = [-norm(f[i], f[j]) / temperature - math.log(normaliser) for j in positives]
        anchors.append(-sum(terms) / len(terms))
    return sum(anchors) / len(anchors)


def test_far_pairs(batch):
    _, u, radius = batch
    found, expected = (
        far_pairs(u, radius),
        torch.tensor(loop_far(u.tolist(), radius.tolist()), dtype=torch.float64),
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert len(found.unique()) >= 5  # several levels disagree
    assert not torch.equal(found, found.T)  # the radius is the column's
    assert not found.diagonal().any()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_unsupervised_self_expertise(batch, alpha):
    f, u, radius = batch
    found = soft_info_nce(-distances(f) / 0.8, soft_targets(far_pairs(u, radius), alpha))
    assert found.item() == pytest.approx(
        loop_self(f.tolist(), loop_far(u.tolist(), radius.tolist()), alpha, 0.8), rel=1e-7
    )


def test_rows_of_the_targets_do_not_sum_to_one(batch):
    """Columns divided by row sums: a broadcasting effect of the published code that is kept."""
    far = far_pairs(*batch[1:])
    target = soft_targets(far, 1.0)
    assert (target.sum(1) - 1).abs().max() > 0.05
    torch.testing.assert_close(target[2, 5], far[2, 5] / far[5].sum())


def test_targets_where_no_pair_is_far():
    target = soft_targets(far_pairs(torch.randn(4, 3), torch.full((2, 4), 100.0)), 0.5)
    expected = torch.zeros(4, 4)
    for i, j in ((0, 2), (1, 3), (2, 0), (3, 1)):
        expected[i, j] = 0.5
    assert torch.equal(target, expected)


def small_method_and_rows(**switches):
    """16 features, 6 known of 10 classes, 20 images, levels (6,4) (3,2) (1,1), 40 dimensions of embedding."""
    method = make(**switches).double()
    g = torch.Generator().manual_seed(3)
    method.clusters.copy_(torch.stack([torch.randint(k, (20,), generator=g) for k in (10, 5, 2)]))
    method.radii.copy_(
        2 + 2 * torch.rand(3, 10, generator=g)
    )  # distances of 16 normal features are about 5.6
    label = torch.tensor([3, 0, -1, 3, -1, 1] * 2)
    rows = Rows(label, label >= 0, torch.tensor([4, 17, 9, 0, 11, 9]).repeat(2), 0, 0)
    return method, rows, torch.randn(ROWS, 16, generator=g, dtype=torch.float64)


def test_total_loss_is_the_published_sum():
    method, rows, z = small_method_and_rows(smoothing=0.5)
    loss = method.loss(method(z), rows)
    f = F.normalize(method(z)[0], dim=1).tolist()
    clusters = method.clusters[:, rows.uq_idx].tolist()
    radius = [[method.radii[i, c].item() for c in level] for i, level in enumerate(clusters)]
    far = loop_far(z.tolist(), radius)  # no MLP head: the features themselves, not normalised
    labelled = [i for i in range(ROWS) if rows.mask[i]]
    everyone = list(range(ROWS))
    expertise = loop_sup_con(f, rows.label.tolist(), labelled)
    for i, dims in enumerate((20, 10, 5)):  # slices that are not normalised again
        expertise += 2.0 ** -(i + 1) * loop_sup_con([row[:dims] for row in f], clusters[i], everyone)
    assert loss.supervised.item() == pytest.approx(0.35 * expertise / 2, rel=1e-6)
    assert loss.unsupervised.item() == pytest.approx(0.65 * loop_self(f, far, 0.5), rel=1e-6)
    assert loss.terms["far"].item() == pytest.approx(sum(map(sum, far)) / ROWS**2, rel=1e-9)
    assert 0.1 < loss.terms["far"].item() < 0.9


def test_gradient_reaches_the_features_through_the_embedding_only():
    method, rows, z = small_method_and_rows(mlp_head_layers=1)
    z.requires_grad_()
    f, u = method(z)
    assert not u.requires_grad
    loss = method.loss((f, u), rows)
    (found,) = torch.autograd.grad(loss.supervised + loss.unsupervised, z)
    row, column, step = 3, 7, 1e-6

    def value(change):
        moved = z.detach().clone()
        moved[row, column] += change
        loss = method.loss((method(moved)[0], u), rows)  # targets held
        return (loss.supervised + loss.unsupervised).item()

    assert found[row, column].item() == pytest.approx((value(step) - value(-step)) / (2 * step), rel=1e-4)


def test_equal_embeddings_have_a_finite_gradient():
    f = F.normalize(torch.randn(6, 8), dim=1)[[0, 1, 0, 3, 1, 0]].requires_grad_()
    distances(f).sum().backward()
    assert f.grad.isfinite().all()


def test_a_batch_without_labelled_rows_trains_on():
    method, rows, z = small_method_and_rows()
    loss = method.loss(
        method(z), rows._replace(mask=torch.zeros(ROWS, dtype=torch.bool), label=torch.full((ROWS,), -1))
    )
    assert loss.terms["supcon"].item() == 0
    (loss.supervised + loss.unsupervised).backward()
    assert all(p.grad.isfinite().all() for p in method.parameters())


def test_heads_and_losses_never_wait_for_the_device():
    method, rows, z = small_method_and_rows(mlp_head_layers=1)
    with NoWaiting():
        loss = method.loss(method(z), rows)
        (loss.supervised + loss.unsupervised).backward()


# Head, optimizer, presets -----------------------------------------------------------------------------------


def test_head():
    method = make(Problem(16, 6, 10, 20, 3, 8, 4), embedding_dim=65536)
    assert method.embedding.weight.shape == (65536, 256)
    linears = [layer for layer in method.projector if isinstance(layer, torch.nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in linears] == [(2048, 16), (2048, 2048), (256, 2048)]
    z = torch.randn(2, 16)
    f, u = method(z)
    assert torch.equal(u, z)
    h = method.projector(z)[1]
    w = method.embedding.weight[777]
    assert f[1, 777].item() == pytest.approx(
        (h @ w / (h.norm() * w.norm())).item(), abs=1e-5
    )  # prototypes have gain 1, no bias


def test_weight_decay_on_every_tensor():
    method, encoder = make(head_lr=1.0), torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.LayerNorm(4))
    encoder[0].weight.requires_grad_(False)
    (sgd,) = method.optimizers(encoder)
    found = {
        (group["lr"], group["initial_lr"], group["weight_decay"], p)
        for group in sgd.param_groups
        for p in group["params"]
    }
    trained = [(0.1, p) for p in encoder.parameters() if p.requires_grad] + [
        (1.0, p) for p in method.parameters()
    ]
    assert found == {(lr, lr, 1e-4, p) for lr, p in trained}
    assert all(group["momentum"] == 0.9 for group in sgd.param_groups)


def test_presets_of_the_published_tables():
    def column(preset, field):
        return [getattr(resolve("selex", dataset, preset), field) for dataset in DATASETS]

    for preset in ("baseline", "paper"):
        assert column(preset, "smoothing") == [1.0, 1.0, 0.5, 0.1, 0.1, 1.0]
        assert column(preset, "mlp_head_layers") == [0] * 6
        assert column(preset, "weight_decay") == [1e-4] * 6
        assert resolve("selex", "cifar10", preset).weight_decay == 5e-5  # the authors' script
    assert column("release", "weight_decay") == [5e-5] * 6
    assert column("release", "smoothing") == [1.0] * 6
    assert column("release", "mlp_head_layers") == [2, 2, 2, 1, 2, 2]
    for preset in ("baseline", "paper", "release"):
        assert column(preset, "trainable_blocks") == [2, 3, 2, 2, 2, 2]
        assert column(preset, "balanced") == [True] * 5 + [False]
        assert column(preset, "embedding_dim") == [65536] * 6
        assert all(column(preset, "published_balancing"))
        # as in the authors' own repository (baseline) and in the release of EAGC, but not in the paper's text
        assert column(preset, "published_order") == [preset != "paper"] * 6
        assert column(preset, "start_accuracy") == [preset == "release"] * 6
        assert column(preset, "lambda_p") == [0.5] * 6
    assert (column("baseline", "head_lr"), column("release", "head_lr")) == ([0.1] * 6, [1.0] * 6)
    assert SelEx.weighting == "selex"
    on, off = (resolve("selex", "scars", "release", eagc=eagc).to_json() for eagc in (True, False))
    assert {name for name in on if on[name] != off[name]} == {"eagc"}


def test_settings_that_cannot_be_used_are_refused():
    with pytest.raises(ConfigError, match="embedding_dim must be >= 8, as each of 3 levels halves it, got 7"):
        make(embedding_dim=7)
    with pytest.raises(ConfigError, match=r"smoothing must be <= 1, got 1\.5"):
        make(smoothing=1.5)


# Whole runs -------------------------------------------------------------------------------------------------


@register("small selex")
class SmallSelEx(SelEx):
    """SelEx with a small projector."""

    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.projector = torch.nn.Sequential(
            torch.nn.Linear(problem.dim, 32), torch.nn.GELU(), torch.nn.Linear(32, 256)
        )


@pytest.fixture
def first_digits(monkeypatch):
    """The first 450 digits."""

    def open_some(*arguments, **options):
        data = open_data(*arguments, **options)
        parts = {"labelled": copy.copy(data.labelled), "unlabelled": copy.copy(data.unlabelled)}
        for part in parts.values():
            part.uq_idx, part.labels = part.uq_idx[part.uq_idx < 450], part.labels[part.uq_idx < 450]
        return dataclasses.replace(data, **parts)

    monkeypatch.setattr(experiment_module, "open_data", open_some)


def digits(**switches):
    settings = {
        "epochs": 2,
        "batch_size": 64,
        "reference_epochs": 1,
        "embedding_dim": 64,
        "evaluation_restarts": 2,
    }
    return resolve(
        "small selex",
        "digits",
        "paper",
        **{**settings, "device": "cpu", "log_every": 4, "checkpoint_every": 2, **switches},
    )


class Stop(Exception):
    pass


class StopAt(Callback):
    def __init__(self, updates):
        self.left = updates

    def after_update(self, loop, rows):
        self.left -= 1
        if self.left == 0:
            raise Stop


@pytest.mark.usefixtures("first_digits")
@pytest.mark.parametrize(("eagc", "cached"), [(False, False), (True, False), (True, True)])
def test_two_epochs_on_digits_stopped_and_resumed_to_the_same_bytes(tmp_path, eagc, cached):
    config = digits(
        eagc=eagc, **({"trunk_cache": str(tmp_path / "cache"), "cache_views": 2} if cached else {})
    )
    result = train(config, tmp_path / "whole")
    with pytest.raises(Stop):
        train(config, tmp_path / "stopped", [StopAt(12)])  # of 7 steps per epoch: in the middle of the second
    assert load_checkpoint(tmp_path / "stopped" / "last.safetensors")[1]["position"] == 4
    assert resume(tmp_path / "stopped") == result
    a, b = (load_checkpoint(tmp_path / name / "last.safetensors")[0] for name in ("whole", "stopped"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert evaluate(tmp_path / "whole")._asdict() == {
        key: result["last"][key] for key in ("all", "old", "new")
    }
    assert ("eagc.matrix" in a) == eagc
    clusters = a["method.clusters"]
    assert clusters.shape == (3, 450)
    assert clusters.min() >= 0  # every image has a cluster at every level
    assert [len(level.unique()) for level in clusters] == [10, 4, 2]
    built = Experiment(config)
    assert torch.equal(clusters[0, built.data.labelled.uq_idx], built.data.labelled.labels)
    start, lines = built.student.state(), (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    assert (
        a["encoder.blocks.2.mlp.fc1.weight"] - start["encoder.blocks.2.mlp.fc1.weight"]
    ).abs().max() > 0  # two blocks are trained
    steps = [json.loads(line) for line in lines if '"kind": "step"' in line]
    for line in steps:
        levels = sum(2.0 ** -(i + 1) * line[f"supcon_level{i}"] for i in range(3))
        assert line["supervised"] == pytest.approx(0.175 * (line["supcon"] + levels), rel=1e-4)
        assert line["unsupervised"] == pytest.approx(0.65 * line["self"], rel=1e-4)


@pytest.mark.usefixtures("first_digits")
def test_the_accuracy_of_the_release_beside_ours_and_nothing_else_changed(tmp_path):
    """At the start of an epoch, from the augmented view, with one restart; the best of all epochs."""
    config = digits(eagc=False, batch_size=225)
    plain = train(config, tmp_path / "plain")
    result = train(config.replace(start_accuracy=True), tmp_path / "scored")
    plain_lines, lines = (
        [line for line in RunFolder.open(tmp_path / name).metrics() if line["kind"] == "epoch"]
        for name in ("plain", "scored")
    )
    # Epoch 0 from its definition; the student is still the one it started from
    built = Experiment(config)
    built.student.eval()
    method, data = built.student.method, built.data
    method.start_epoch(0, built.features)
    at_start = accuracy(method.clusters[0, data.unlabelled.uq_idx], data.unlabelled.labels, data.known)
    assert [lines[0][f"start_{name}"] for name in ("all", "old", "new")] == list(at_start)
    # Epoch 1 from the checkpoint, which has its clusters
    clusters = load_checkpoint(tmp_path / "scored" / "last.safetensors")[0]["method.clusters"]
    at_start = accuracy(clusters[0, data.unlabelled.uq_idx], data.unlabelled.labels, data.known)
    assert [lines[1][f"start_{name}"] for name in ("all", "old", "new")] == list(at_start)
    best = max(lines, key=lambda line: line["start_all"])
    assert result["best_start"] == {
        "epoch": best["epoch"],
        **{name: best[f"start_{name}"] for name in ("all", "old", "new")},
    }
    assert [line["start_all"] for line in lines] != [line["all"] for line in lines]

    # The run itself and its other numbers are those of a run that does not score its starts
    assert {**plain, "best_start": result["best_start"]} == result
    for line, scored in zip(plain_lines, lines, strict=True):
        assert scored.keys() - line.keys() == {"start_all", "start_old", "start_new"}
        assert all(scored[name] == line[name] for name in line if name != "seconds")
    a, b = (load_checkpoint(tmp_path / name / "last.safetensors")[0] for name in ("plain", "scored"))
    assert all(torch.equal(a[name], b[name]) for name in a.keys() | b.keys())


def test_the_first_augmented_view_of_every_image_in_order():
    built = Experiment(digits(eagc=False))
    built.student.eval()
    data = built.data
    z, label, uq_idx = built.features.augmented(3)
    n = len(data.labelled)
    assert torch.equal(label, torch.cat([data.labelled.labels, torch.full((len(data.unlabelled),), -1)]))
    assert torch.equal(uq_idx, torch.cat([data.labelled.uq_idx, data.unlabelled.uq_idx]))
    views = KeyedViews(data.merged, data.train_transform, 1, draw_key(0, -1, 4))
    with torch.no_grad():
        for j in (0, n - 1, n, 1000, 1796):
            pixels = views[Draw(3, j, j)][0][0][None]
            torch.testing.assert_close(z[j], built.student.encoder.vit(pixels)[0], rtol=1e-4, atol=1e-4)
    assert not torch.equal(z, built.features.augmented(4)[0])


@pytest.mark.usefixtures("first_digits")
def test_clusters_are_made_before_the_first_batch_of_every_epoch(tmp_path, monkeypatch):
    made = []

    def cluster(self, x, fixed, k, generator, name, restarts=1):
        made.append((name, self.training, torch.is_grad_enabled()))
        labels = torch.where(fixed >= 0, fixed, torch.arange(len(x)) % k)
        centers = torch.nn.functional.one_hot(torch.arange(k), x.shape[1]).float()
        return Clusters(labels, centers, 0.0, centers)

    monkeypatch.setattr(SelEx, "cluster", cluster)
    train(digits(eagc=False, batch_size=200), tmp_path / "run")
    epoch = [(f"k-means, level {i}", False, False) for i in range(3)] + [
        ("k-means, evaluation", False, False)
    ]
    assert made == 2 * epoch


def test_two_processes_take_the_steps_of_one(tmp_path):
    data = small_runs.write_files(tmp_path / "images")
    gentle = {
        "backbone_lr": 0.01,
        "head_lr": 0.01,
        "embedding_dim": 64,
        "epochs": 2,
        "evaluation_restarts": 2,
        "batch_size": 20,
    }
    config = small_runs.small_config(data, "selex", **gentle)
    scenario = {"config": config.to_json(), "world": 2, "kill": None, "output": str(tmp_path / "two" / "run")}
    small_runs.run_in_processes([scenario], tmp_path)
    train(config, tmp_path / "one")
    one, two = (load_checkpoint(tmp_path / name / "last.safetensors")[0] for name in ("one", "two/run"))
    assert torch.equal(one["method.clusters"], two["method.clusters"])
    for name in one:
        limit = 1e-3 * one[name].abs().max().item() if name.startswith("optimizer") else 1e-5
        torch.testing.assert_close(
            two[name], one[name], rtol=0, atol=limit, msg=lambda m, name=name: f"{name}: {m}"
        )
