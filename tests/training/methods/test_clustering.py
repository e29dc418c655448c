"""Semi-supervised k-means against a brute-force version with Python loops in fp64, and at its edges."""

from collections import Counter

import pytest
import torch
from torch.nn import functional as F

from eagc_ops.training.methods.clustering import _balance, kmeans_plus_plus, semi_supervised_kmeans

FREE = -1


def squared(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b))


def mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows)]


def nearest(point, centers, allowed=None):
    candidates = range(len(centers)) if allowed is None else allowed
    return min(candidates, key=lambda c: squared(point, centers[c]))


def brute_force(
    points, fixed, k, draws, cluster_size=None, iterations=10, tolerance=1e-4, published=True, seen=None
):
    """One restart of the published algorithm: (labels, centers, inertia) at the lowest inertia.

    `published=False` is the corrected balancing. `seen` counts the clusters that tell the two apart.
    """
    seen = Counter() if seen is None else seen
    free = [i for i, c in enumerate(fixed) if c == FREE]
    constrained = [i for i, c in enumerate(fixed) if c != FREE]
    centers = [
        mean([points[i] for i in constrained if fixed[i] == c]) if c in fixed else None for c in range(k)
    ]
    anchored = [c in fixed for c in range(k)]
    for c in range(k):
        if centers[c] is None:
            existing = [center for center in centers if center is not None]
            weight = [
                min(squared(points[i], center) for center in existing) if existing else 1.0 for i in free
            ]
            r, total = next(draws), 0.0
            for i, w in zip(free, weight):
                total += w / sum(weight)
                if total >= r:
                    centers[c] = points[i]
                    break
    best = None
    for stage in ("A", "B"):
        for t in range(iterations):
            label = {i: nearest(points[i], centers) for i in free} | {i: fixed[i] for i in constrained}
            inertia = sum(squared(points[i], centers[label[i]]) for i in label)
            for _ in range(t if stage == "A" and cluster_size is not None else 0):
                released, takes_more = [], []
                for c in range(k):
                    room = cluster_size - sum(fixed[i] == c for i in constrained)
                    members = [i for i in free if label[i] == c]
                    members.sort(key=lambda i, c=c: squared(points[i], centers[c]))
                    seen["negative room, some stay"] += room < 0 and len(members) > max(-room, 1)
                    seen["one point, no room"] += room <= 1 and len(members) == 1
                    if published:
                        if len(members) == 1 or len(members) < room:
                            takes_more.append(c)
                        elif len(members) > room:
                            released += members[room:]  # from the end, if the room is negative
                    else:
                        released += members[max(room, 0) :]
                        takes_more += [c] if len(members) < room else []
                for i in released:
                    label[i] = nearest(points[i], centers, takes_more)
            moved = []
            for c in range(k):
                rows = [points[i] for i in label if label[i] == c]
                moved.append(centers[c] if not rows or (stage == "A" and anchored[c]) else mean(rows))
            if best is None or inertia < best[2]:
                best = [label[i] for i in range(len(points))], moved, inertia
            shift = sum(squared(a, b) ** 0.5 for a, b in zip(moved, centers))
            centers = moved
            if shift**2 < tolerance:
                break
    return best


def blobs(seed, points=70, k=6, known=3, spread=0.7):
    """Overlapping blobs of unequal size; about half of the first `known` classes is fixed."""
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(points, generator=g) ** 2 * k).long()
    x = torch.randn(k, 3, generator=g, dtype=torch.float64)[y] + spread * torch.randn(
        points, 3, generator=g, dtype=torch.float64
    )
    return x, torch.where((y < known) & (torch.rand(points, generator=g) < 0.5), y, FREE), y


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def assert_same(found, expected):
    labels, centers, inertia = expected
    assert found.labels.tolist() == labels
    assert found.inertia == pytest.approx(inertia, rel=1e-10)
    expected = torch.tensor(centers, dtype=torch.float64)
    torch.testing.assert_close(found.centers, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize(
    ("cluster_size", "published"), [(None, True), (12, True), (20, True), (12, False), (20, False)]
)
@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_against_brute_force(restarts, cluster_size, published, iterations):
    for seed in range(3):
        x, fixed, _ = blobs(seed)
        found = semi_supervised_kmeans(
            x,
            fixed,
            6,
            generator=generator(seed),
            cluster_size=cluster_size,
            published_balancing=published,
            restarts=restarts,
            iterations=iterations,
        )
        draws = iter(
            torch.rand(3 * restarts, generator=generator(seed), dtype=torch.float64).tolist()
        )  # three centers are not anchored
        settings = (cluster_size, iterations, 1e-4, published)
        runs = [brute_force(x.tolist(), fixed.tolist(), 6, draws, *settings) for _ in range(restarts)]
        assert_same(found, min(runs, key=lambda run: run[2]))


def coarse_level(seed, points=150, k=16, known=8):
    """Unit features as at a coarse level of a hierarchy: most points of known clusters are fixed.

    Clusters differ in size, so that fixed points alone exceed the common size of some.
    """
    g = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(k), (torch.rand(points - k, generator=g) ** 1.5 * k).long()])
    x = torch.randn(k, 5, generator=g, dtype=torch.float64)[y]
    x = F.normalize(x + torch.randn(points, 5, generator=g, dtype=torch.float64), dim=1)
    fixed = torch.where((y < known) & (torch.rand(points, generator=g) < 0.7), y, FREE)
    return x, fixed, k, -(-points // k)


@pytest.mark.parametrize("case", ["published", "corrected", "not balanced"])
def test_a_coarse_level_agrees_with_the_rule_point_for_point(case):
    seen, published = Counter(), case != "corrected"
    for seed in range(6):
        x, fixed, k, size = coarse_level(seed)
        size = None if case == "not balanced" else size
        unanchored = k - len(fixed[fixed >= 0].unique())
        draws = iter(torch.rand(unanchored, generator=generator(seed), dtype=torch.float64).tolist())
        options = {"cluster_size": size, "published_balancing": published}
        found = semi_supervised_kmeans(x, fixed, k, generator=generator(seed), **options)
        expected = brute_force(x.tolist(), fixed.tolist(), k, draws, size, published=published, seen=seen)
        assert (found.labels == torch.tensor(expected[0])).double().mean() == 1.0
        assert_same(found, expected)
    if case == "published":  # or the comparison would show nothing
        assert min(seen["negative room, some stay"], seen["one point, no room"]) > 20


def test_the_rules_differ_on_a_coarse_level():
    agreement = []
    for seed in range(6):
        x, fixed, k, size = coarse_level(seed)
        labels = [
            semi_supervised_kmeans(x, fixed, k, generator=generator(seed), **options).labels[fixed == FREE]
            for options in (
                {"cluster_size": size},
                {"cluster_size": size, "published_balancing": False},
                {"cluster_size": None},
            )
        ]
        agreement.append([(labels[0] == other).double().mean().item() for other in labels[1:]])
    assert max(min(pair) for pair in zip(*agreement)) < 0.95


def test_capacity_restarts_and_iterations_matter_on_these_cases():
    """Or the comparison above would show nothing."""

    def all_labels(**options):
        return [
            semi_supervised_kmeans(x, fixed, 6, generator=generator(s), **options).labels.tolist()
            for s in range(3)
            for x, fixed, _ in [blobs(s)]
        ]

    plain = all_labels()
    assert plain != all_labels(cluster_size=12)
    assert plain != all_labels(restarts=3)
    assert plain != all_labels(iterations=1)


def test_plain_k_means_without_fixed_points():
    x, _, _ = blobs(4)
    free = torch.full((70,), FREE)
    found = semi_supervised_kmeans(x, free, 5, generator=generator(1), iterations=300, tolerance=0.0)
    draws = iter(torch.rand(5, generator=generator(1), dtype=torch.float64).tolist())
    labels, _, inertia = brute_force(x.tolist(), free.tolist(), 5, draws, iterations=300, tolerance=0.0)
    assert found.labels.tolist() == labels
    assert found.inertia == pytest.approx(inertia, rel=1e-10)


@pytest.mark.parametrize("tolerance", [0.01, 0.1, 0.5, 2.0])
def test_iterations_end_when_the_square_of_the_summed_shifts_is_small(tolerance):
    for seed in range(4):
        x, fixed, _ = blobs(seed)
        draws = iter(torch.rand(3, generator=generator(seed), dtype=torch.float64).tolist())
        labels, _, _ = brute_force(x.tolist(), fixed.tolist(), 6, draws, tolerance=tolerance)
        assert (
            semi_supervised_kmeans(
                x, fixed, 6, generator=generator(seed), tolerance=tolerance
            ).labels.tolist()
            == labels
        )


def test_fixed_points_keep_their_cluster_even_far_away_from_it():
    x = torch.tensor([[0.0], [100.0], [99.0], [98.0], [0.5]])
    fixed = torch.tensor([0, 0, 1, FREE, FREE])  # the second point of cluster 0 lies among those of cluster 1
    assert semi_supervised_kmeans(x, fixed, 2, generator=generator()).labels.tolist() == [0, 0, 1, 1, 0]


def test_blobs_that_do_not_overlap_are_found():
    g = generator(3)
    y = torch.arange(300) % 10
    x = 10 * torch.randn(10, 8, generator=g)[y] + 0.1 * torch.randn(300, 8, generator=g)
    fixed = torch.where((y < 5) & (torch.arange(300) < 150), y, FREE)
    found = semi_supervised_kmeans(x, fixed, 10, generator=g, cluster_size=30, restarts=10)
    assert torch.equal(found.labels[y < 5], y[y < 5])
    assert (
        len({tuple(pair) for pair in torch.stack([found.labels, y], 1).tolist()}) == 10
    )  # one cluster per class


# Balancing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("published", [True, False])
def test_balancing_ends_with_no_cluster_above_its_room(published):
    g = generator(5)
    distance, room = torch.rand(40, 4, generator=g), torch.tensor([10, 0, 25, 5])
    labels = distance.argmin(1)
    before = labels.bincount(minlength=4)
    assert (before > room).sum() >= 2
    for _ in range(40):
        labels = _balance(distance, labels, room, published)
    assert labels.bincount(minlength=4).tolist() == [10, 0, 25, 5]
    assert torch.equal(_balance(distance, labels, room, published), labels)


@pytest.mark.parametrize("published", [True, False])
def test_one_round_releases_the_farthest_and_sends_them_to_the_nearest_with_room(published):
    #                        cluster 0 is overfull, 1 is full, 2 and 3 have room
    distance = torch.tensor(
        [[0.1, 9, 5, 4], [0.3, 9, 1, 2], [0.2, 0.25, 4, 3], [9, 0.1, 9, 9], [9, 0.2, 9, 9]]
    )
    labels, room = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1, 2, 1, 2])
    assert _balance(distance, labels, room, published).tolist() == [0, 2, 3, 1, 1]


@pytest.mark.parametrize(
    ("room", "published", "corrected"),
    [
        (1, [0, 1, 1, 1], [0, 1, 1, 1]),
        (0, [1, 1, 1, 1], [1, 1, 1, 1]),
        (-1, [0, 0, 0, 1], [1, 1, 1, 1]),  # fixed points alone exceed the size by one
        (-3, [0, 1, 1, 1], [1, 1, 1, 1]),
        (-9, [1, 1, 1, 1], [1, 1, 1, 1]),
    ],
)
def test_points_that_a_cluster_without_room_releases(room, published, corrected):
    distance = torch.tensor([[0.1, 5], [0.2, 5], [0.3, 5], [0.4, 5]])
    labels, rooms = torch.zeros(4, dtype=torch.int64), torch.tensor([room, 20])
    assert _balance(distance, labels, rooms, published=True).tolist() == published
    assert _balance(distance, labels, rooms, published=False).tolist() == corrected


@pytest.mark.parametrize("room", [1, 0, -2])
def test_a_cluster_with_one_point_and_no_room(room):
    """As published it keeps the point and takes in others; corrected, it does neither without room."""
    # Three points of cluster 0, which has room for one; one point of cluster 1, nearer to 2 by now
    distance = torch.tensor([[0.1, 1, 3], [0.2, 1, 3], [0.3, 1, 3], [5, 0.2, 0.1]])
    labels, rooms = torch.tensor([0, 0, 0, 1]), torch.tensor([1, room, 20])
    assert _balance(distance, labels, rooms, published=True).tolist() == [0, 1, 1, 1]
    stays = 1 if room == 1 else 2
    assert _balance(distance, labels, rooms, published=False).tolist() == [0, 2, 2, stays]


# Edges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster_size", [None, 10])
def test_an_empty_cluster_keeps_its_center(cluster_size):
    """Two different points, five clusters: at most two of them can have points."""
    x = torch.tensor([[1.0, 0.0]] * 15 + [[0.0, 1.0]] * 15)
    fixed = torch.tensor([0] + [FREE] * 29)
    found = semi_supervised_kmeans(x, fixed, 5, generator=generator(), cluster_size=cluster_size)
    counts = found.labels.bincount(minlength=5)
    assert (counts == 0).any()
    assert found.centers.isfinite().all()
    for center in found.centers[counts == 0]:
        assert center.tolist() in ([1.0, 0.0], [0.0, 1.0])  # where k-means++ put it
    assert found.inertia == pytest.approx(0, abs=1e-5)


def test_nothing_free_and_a_known_class_without_points():
    x, _, y = blobs(1)
    found = semi_supervised_kmeans(
        x, y, 8, generator=generator(), cluster_size=9
    )  # clusters 6 and 7 stay empty
    assert torch.equal(found.labels, y)
    assert found.centers.isfinite().all()
    fixed = torch.where(y == 2, y, FREE)  # classes 0 and 1 have no fixed point: they start like new ones
    found = semi_supervised_kmeans(x, fixed, 6, generator=generator())
    draws = iter(torch.rand(5, generator=generator(), dtype=torch.float64).tolist())
    assert found.labels.tolist() == brute_force(x.tolist(), fixed.tolist(), 6, draws)[0]


def test_draws_come_from_the_generator_alone():
    x, fixed, _ = blobs(0)
    state = torch.random.get_rng_state()
    a, b, c = (semi_supervised_kmeans(x, fixed, 6, generator=generator(seed)) for seed in (0, 0, 11))
    assert torch.equal(a.centers, b.centers)
    assert not torch.equal(a.centers, c.centers)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_k_means_plus_plus_prefers_far_points():
    x = torch.cat([torch.zeros(50, 2), torch.tensor([[3.0, 0.0], [0.0, 4.0]])])
    g, picks = generator(), []
    for _ in range(2000):
        picks.append(kmeans_plus_plus(x, torch.zeros(1, 2), 1, g)[0].tolist())
    assert picks.count([0.0, 4.0]) / 2000 == pytest.approx(16 / 25, abs=0.04)  # by squared distance
    assert picks.count([3.0, 0.0]) / 2000 == pytest.approx(9 / 25, abs=0.04)


def test_greedy_draws_take_the_best_of_their_trials():
    x, count, trials = blobs(3)[0].double(), 7, 4
    chosen = kmeans_plus_plus(x, x[:2], count, generator(), trials)
    numbers = torch.rand(count, trials, generator=generator(), dtype=torch.float64)
    centers = x[:2].tolist()
    for row, drawn in zip(numbers.tolist(), chosen.tolist()):
        distance = [min(squared(point, c) for c in centers) for point in x.tolist()]
        cumulative = [sum(distance[: i + 1]) for i in range(len(distance))]
        picks = [next(i for i, c in enumerate(cumulative) if c >= r * cumulative[-1]) for r in row]
        left = [
            sum(min(d, squared(point, x[i].tolist())) for d, point in zip(distance, x.tolist()))
            for i in picks
        ]
        assert drawn == x[picks[left.index(min(left))]].tolist()
        centers.append(drawn)


def test_autocast_changes_nothing():
    x, fixed, _ = blobs(2)
    x = x.float() + 20  # in bf16 the distances would be noise
    plain = semi_supervised_kmeans(x, fixed, 6, generator=generator())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(semi_supervised_kmeans(x, fixed, 6, generator=generator()).labels, plain.labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": torch.zeros(4)}, r"points must be \(N, D\) floating"),
        ({"points": torch.tensor([[0.0], [torch.nan], [1.0], [2.0]])}, "points must be finite"),
        ({"fixed": torch.zeros(3, dtype=torch.int64)}, r"fixed must be int64 \(4,\)"),
        ({"fixed": torch.zeros(4)}, r"fixed must be int64 \(4,\)"),
        ({"fixed": torch.tensor([0, 1, 2, -1])}, "a cluster below k=2, got values from -1 to 2"),
        ({"cluster_size": 1}, "cluster_size must be >= 2 for 2 clusters to hold 4 points, got 1"),
        ({"restarts": 0}, "restarts=0"),
        ({"iterations": 0}, "iterations=0"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(change, message):
    arguments = {
        "points": torch.randn(4, 1),
        "fixed": torch.full((4,), -1),
        "k": 2,
        "generator": generator(),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        semi_supervised_kmeans(**arguments)


def test_progress_is_shown_when_asked_for(capsys):
    x, fixed, _ = blobs(0)
    semi_supervised_kmeans(x, fixed, 6, generator=generator(), progress="k-means, level 3")
    assert "k-means, level 3" in capsys.readouterr().err
    semi_supervised_kmeans(x, fixed, 6, generator=generator())
    assert capsys.readouterr().err == ""
