"""The estimate of K on blobs, its searches by hand, the command, and training with an estimated K."""

import argparse
import json
import math

import pytest
import small_runs
import torch
from sklearn.cluster import KMeans
from torch.nn import functional as F

from eagc_ops.app import cli
from eagc_ops.training.analysis import estimate_k as module
from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.analysis.estimate_k import _bisection, _brent, estimate_k
from eagc_ops.training.config import (
    ConfigError,
    add_config_arguments,
    config_from_arguments,
    from_json,
    resolve,
)
from eagc_ops.training.data import open_data
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods.clustering import kmeans_plus_plus
from eagc_ops.training.models.features import pretrained_features
from eagc_ops.training.runs import resume, train

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")


def blobs(classes=12, known=8, each=20, scale=True):
    g = torch.Generator().manual_seed(0)
    y = torch.arange(classes * each) % classes
    x = F.normalize(torch.randn(classes, 16, generator=g), dim=1)[y] + 0.07 * torch.randn(
        classes * each, 16, generator=g
    )
    length = (
        torch.rand(len(x), 1, generator=g) * 30 + 0.1 if scale else 1.0
    )  # direction alone tells the classes apart
    return x * length, torch.where((y < known) & (torch.arange(len(y)) < len(y) // 2), y, -1), y


@pytest.mark.parametrize("search", ["brent", "bisection"])
def test_blobs(search):
    features, label, _ = blobs()
    found = estimate_k(features, label, 8, search=search, largest=40, restarts=3)
    assert abs(found.k - 12) <= 2
    assert found.accuracy == found.tried[found.k] > 0.9
    assert min(found.tried) >= 8
    assert max(found.tried) <= 40


def test_published_a_candidate_is_judged_by_the_labelled_rows_of_ten_k_means_on_all_normalised_rows():
    features, label, _ = blobs()
    found = estimate_k(features, label, 8, largest=14, published=True)
    for k, score in found.tried.items():
        clusters = KMeans(k, n_init=10, random_state=0).fit_predict(F.normalize(features, dim=1).numpy())
        assert score == accuracy(clusters[label >= 0], label[label >= 0], 8).all


@pytest.mark.parametrize("search", ["brent", "bisection"])
def test_all_candidates_start_from_the_same_order_of_centers(search):
    """The oracle draws each order whole; the search draws it piece by piece, as candidates need it."""
    features, label, _ = blobs()
    points = F.normalize(features, dim=1)
    found = estimate_k(features, label, 8, search=search, largest=40, restarts=3, seed=5)
    trials = 2 + int(math.log(40))
    orders = [
        kmeans_plus_plus(points, points[:0], 40, torch.Generator().manual_seed(15 + i), trials)
        for i in range(3)
    ]
    for k, score in found.tried.items():
        models = [KMeans(k, init=o[:k].numpy(), n_init=1, max_iter=30).fit(points.numpy()) for o in orders]
        clusters = min(models, key=lambda model: model.inertia_).labels_
        assert score == accuracy(clusters[label >= 0], label[label >= 0], 8).all


def test_the_seed_decides_and_ten_restarts_are_the_default():
    features, label, _ = blobs()
    first = estimate_k(features, label, 8, largest=40)
    assert first == estimate_k(features, label, 8, largest=40, restarts=10)
    assert first.tried != estimate_k(features, label, 8, largest=40, restarts=10, seed=1).tried


@pytest.mark.parametrize(("budget", "restarts"), [(1e9, 10), (240 * 16 * 40 * 5.5, 5), (1.0, 3)])
def test_a_large_data_set_gets_fewer_restarts(monkeypatch, budget, restarts):
    features, label, _ = blobs()
    monkeypatch.setattr(module, "BUDGET", budget)
    found = estimate_k(features, label, 8, largest=40)
    monkeypatch.undo()
    assert found == estimate_k(features, label, 8, largest=40, restarts=restarts)


def test_the_range_follows_the_size_of_the_known_classes():
    _, label, _ = blobs()  # 240 images, 10 labelled ones of each of 8 classes
    assert module.largest_k(label, 8) == 48
    assert module.largest_k(label[label >= 0], 8) == 16
    assert module.largest_k(torch.arange(60_000) % 3000, 3000) == 6000  # more known classes than 1,000
    label = torch.full((200_000,), -1)
    label[:500] = torch.arange(500) % 100
    assert module.largest_k(label, 100) == 1000


def test_the_end_of_the_range_is_said():
    features, label, _ = blobs()
    with pytest.warns(UserWarning, match="K = 9 is the end of the range"):
        assert estimate_k(features, label, 8, largest=10).k == 9


def test_the_work_is_said_and_counted(capsys):
    features, label, _ = blobs()
    found = estimate_k(features, label, 8, largest=40, restarts=2, progress=True)
    shown = capsys.readouterr()
    text = "K in 8 .. 40: about 10 candidates, each judged by 2 k-means of at most 30 iterations on 240 x 16"
    assert text in shown.out + shown.err
    count = 2 * len(found.tried)
    assert f"{count}/{count}" in shown.err.replace("\r", "\n").splitlines()[-1]


def test_the_range_ends_at_the_number_of_rows():
    features, label, _ = blobs(each=2)
    assert max(estimate_k(features, label, 8, search="bisection", restarts=1).tried) <= 24


def trace(search, score, small, big):
    asked = []
    answer = search(lambda k: asked.append(k) or score(k), small, big)
    return answer, asked


def test_bisection_by_hand():
    # 10..42, best at 17: acc(42) < acc(10) -> 10..26; 26 is worse than 10 -> 10..18; 18 is better -> 14..18;
    # 18 better -> 16..18; 18 and 16 are equally good -> 16..17, whose middle is 16; five rounds = log2(32)
    answer, asked = trace(_bisection, lambda k: -abs(k - 17), 10, 42)
    assert answer == 17
    assert asked[:10] == [42, 10, 26, 10, 18, 10, 18, 14, 18, 16]
    # 10..13: one round, 13 is better -> 11, 12, 13, and the middle one is the best
    assert trace(_bisection, {10: 0.0, 13: 0.5, 11: 0.1, 12: 0.9}.get, 10, 13) == (12, [13, 10, 11, 12, 13])
    # equally good ends: the upper half is given up
    assert trace(_bisection, lambda k: 0.0, 10, 14)[0] == 10


def test_brent_is_the_bounded_search_on_whole_numbers():
    from scipy.optimize import minimize_scalar

    def score(k):
        assert isinstance(k, int)
        return -((k - 231) ** 2)

    answer, asked = trace(_brent, score, 100, 1000)
    assert answer == int(minimize_scalar(lambda x: -score(int(x)), bounds=(100, 1000), method="bounded").x)
    assert abs(answer - 231) <= 1
    assert asked[0] == int(100 + (900 * (3 - math.sqrt(5)) / 2))  # golden section first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": torch.full((240,), -1)}, "label must hold a class below known=8"),
        ({"known": 3}, "label must hold a class below known=3"),
        ({"largest": 8}, "must be > 8, the number of known classes, got 8"),
        ({"label": torch.zeros(7, dtype=torch.int64)}, r"features must be \(N, D\) and label \(N,\)"),
        ({"restarts": 0}, "restarts must be >= 1, got 0"),
        ({"search": "golden"}, "search must be one of brent, bisection, got 'golden'"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(change, message):
    features, label, _ = blobs()
    with pytest.raises(ValueError, match=message):
        estimate_k(**{"features": features, "label": label, "known": 8, **change})


# The command ------------------------------------------------------------------------------------------------


def test_the_command_uses_the_given_split(data, capsys, monkeypatch):
    """The labelled images are those of the split file, though it lists the classes out of order."""
    seen, original = [], module.estimate_k
    monkeypatch.setattr(module, "estimate_k", lambda *a, **o: seen.append((a, o)) or original(*a, **o))
    options = [
        "--dataset",
        "folder",
        "--image-size",
        "16",
        "--backbone",
        "vit_digits",
        "--device",
        "cpu",
        "--search",
        "bisection",
    ]
    options += [part for name, value in data.items() for part in (f"--{name.replace('_', '-')}", value)]
    assert cli.main(["estimate-k", *options, "--largest", "12", "--restarts", "2"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    (features, label, known), settings = seen[0]
    again = original(features, label, known, **{**settings, "progress": False})
    assert last == f"estimated K: {again.k}, of which 3 are known"
    assert settings == {
        "search": "bisection",
        "largest": 12,
        "restarts": 2,
        "published": False,
        "seed": 0,
        "progress": True,
    }
    found = open_data("folder", data["root"], split_file=data["split_file"], image_size=16)
    assert torch.equal(label, torch.cat([found.labelled.labels, torch.full((42,), -1)]))
    assert features.shape == (60, 96)
    built = Experiment(small_runs.small_config(data))
    with torch.no_grad():
        torch.testing.assert_close(
            features[20], built.student.encoder.vit(found.test_transform(found.merged[20][0])[None])[0]
        )


def test_the_command_without_options_of_its_own(data, capsys):
    options = ["--dataset", "folder", "--image-size", "16", "--backbone", "vit_digits", "--device", "cpu"]
    options += [part for name, value in data.items() for part in (f"--{name.replace('_', '-')}", value)]
    assert cli.main(["estimate-k", *options]) == 0
    shown = capsys.readouterr()
    # 60 images, 18 labelled ones of 3 classes: K ends at 2 * 3 * 60 / 18
    assert "K in 3 .. 20: about 9 candidates, each judged by 10 k-means of at most 30 iterations" in (
        shown.out + shown.err
    )
    assert "60/60" in shown.err  # the bar of the features
    assert cli.main(["estimate-k", *options, "--published", "--restarts", "1"]) == 0
    shown = capsys.readouterr()
    assert "K in 3 .. 60: about" in shown.out + shown.err
    assert "300 iterations" in shown.out + shown.err


def test_the_command_says_what_is_wrong(capsys):
    assert cli.main(["estimate-k", "--dataset", "folder"]) == 2
    assert capsys.readouterr().err.startswith("eagc estimate-k: ")


# Training with another K ------------------------------------------------------------------------------------


def test_k_is_a_number_or_the_word_estimate():
    def parse(*arguments):
        parser = argparse.ArgumentParser()
        add_config_arguments(parser)
        return config_from_arguments(parser.parse_args(arguments)).k

    assert [parse("--k", "231"), parse("--k", "estimate"), parse("--k", "none"), parse()] == [
        231,
        "estimate",
        None,
        None,
    ]
    for value in ("many", "2.5"):
        with pytest.raises(SystemExit):
            parse("--k", value)
    for value, message in [
        (0, "k must be >= 1, got 0"),
        ("guess", "k must be a whole number or 'estimate' or none, got 'guess'"),
        (2.0, "k must be a whole number .* got 2.0"),
    ]:
        with pytest.raises(ConfigError, match=message):
            resolve(k=value)
    config = resolve(k="estimate")
    assert from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize("method", ["simgcd", "selex"])
def test_heads_and_clusters_have_the_given_number(data, method):
    built = Experiment(
        small_runs.small_config(data, method, k=9, **({"embedding_dim": 16} if method == "selex" else {}))
    )
    head = built.student.method
    if method == "simgcd":
        assert head.classifier.weight.shape[0] == 9
    else:
        assert head.levels == [(3, 6), (1, 3)]  # C_new = K - C_old
        built.student.eval()
        with torch.no_grad():
            predicted = head.predict(built.features)
        assert predicted.max() == 8
    with pytest.raises(ConfigError, match="k must be >= 3, the number of known classes, got 2"):
        Experiment(small_runs.small_config(data, method, k=2))


def test_an_estimate_is_made_once_and_kept(data, tmp_path, monkeypatch):
    config = small_runs.small_config(data, k="estimate", epochs=1)
    with pytest.raises(ConfigError, match="k='estimate' is resolved by train"):
        Experiment(config)
    train(config, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    k = folder.config.k
    record = folder.facts.k_estimate
    assert record["k"] == k == folder.facts.classes
    assert record["tried"][str(k)] == record["accuracy"]
    assert load_checkpoint(folder.last)[0]["method.classifier.weight"].shape[0] == k
    built = Experiment(small_runs.small_config(data))
    assert estimate_k(*pretrained_features(built.student.encoder, built.batches, 60), 3).k == k
    (tmp_path / "run" / "result.json").unlink()
    monkeypatch.setattr("eagc_ops.training.runs.estimate_k", None)  # a resumed run does not look again
    resume(tmp_path / "run")
