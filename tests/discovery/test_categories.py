"""Categories of planted features: names, confidences, distances, and what is doubtful and why."""

import pytest
import torch
from torch.nn import functional as F

from eagc_ops.discovery.categories import find_categories, place, read_categories
from eagc_ops.training.analysis.map_2d import map_2d

CENTERS = F.normalize(torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]), dim=1)


def features(category, noise=0.05, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * (CENTERS[category] + noise * torch.randn(len(category), 4, generator=generator))


def probabilities(category, confidence=0.9):
    rest = (1 - confidence) / 3
    return torch.full((len(category), 4), rest).scatter(1, category[:, None], confidence)


@pytest.fixture
def planted():
    """Two known classes; cluster 2 has 10 images, cluster 3 has 30, and class 1 has none."""
    category = torch.tensor([0] * 25 + [2] * 10 + [3] * 30)
    label = torch.tensor([0] * 6 + [1] * 6)
    return category, features(category), probabilities(category), features(label, seed=1), label


def found_in(planted, **changes):
    _, z, p, labelled_z, label = planted
    return find_categories(changes.get("z", z), changes.get("p", p), labelled_z, label, ["ant", "bee"])


def test_new_categories_are_numbered_by_size(planted):
    found = found_in(planted)
    assert found.categories.names == ["ant", "bee", "new-2", "new-1"]
    listed = [(entry.name, entry.kind, entry.size, entry.labelled) for entry in found.listed]
    assert listed == [
        ("ant", "known", 25, 6),
        ("bee", "known", 0, 6),
        ("new-1", "new", 30, 0),
        ("new-2", "new", 10, 0),
    ]
    assert torch.equal(found.placed.category, planted[0])
    assert not any(entry.doubtful for entry in found.listed)


def test_an_empty_cluster_is_no_category(planted):
    category, z, p, *_ = planted
    kept = category != 2
    found = find_categories(z[kept], p[kept], *planted[3:], ["ant", "bee"])
    assert [entry.name for entry in found.listed] == ["ant", "bee", "new-1"]


def test_confidence_margin_and_distance(planted):
    category, z, _, labelled_z, label = planted
    placed = found_in(planted).placed
    torch.testing.assert_close(placed.confidence, torch.full((65,), 0.9))
    torch.testing.assert_close(placed.margin, torch.full((65,), 0.9 - 0.1 / 3))
    unit = F.normalize(torch.cat([labelled_z[label == 0], z[category == 0]]).double(), dim=1)
    center = F.normalize(unit.mean(0), dim=0)
    torch.testing.assert_close(placed.distance[:25].double(), 1 - unit[6:] @ center, atol=1e-6, rtol=0)


def test_typical_images_are_the_nearest_and_doubtful_ones_the_least_sure(planted):
    p = planted[2].clone()
    p[40], p[50] = torch.tensor([0.0, 0.3, 0.3, 0.4]), torch.tensor([0.0, 0.45, 0.0, 0.55])
    found = found_in(planted, p=p)
    (new,) = [entry for entry in found.listed if entry.name == "new-1"]
    assert new.doubtful_images == [40, 50]
    order = (found.placed.distance[35:].argsort(stable=True) + 35).tolist()
    assert new.typical == [i for i in order if i not in (40, 50)][:12]
    assert [found.placed.status[i] for i in (39, 40, 50)] == ["clear", "doubtful", "doubtful"]


def test_an_image_far_from_all_fits_nowhere_however_sure_the_classifier_is(planted):
    z = planted[1].clone()
    z[60] = torch.tensor([0.0, -1.0, 0.0, 0.2])
    placed = found_in(planted, z=z).placed
    assert placed.status[60] == "nowhere"
    assert placed.status.count("nowhere") == 1


def test_equal_images_all_fit():
    category = torch.tensor([0] * 30 + [2] * 30)
    found = find_categories(
        CENTERS[category], probabilities(category), CENTERS[:2], torch.tensor([0, 1]), ["ant", "bee"]
    )
    assert set(found.placed.status) == {"clear"}


def test_why_a_category_is_doubtful(planted):
    category, z, p, *_ = planted
    few = torch.cat([torch.arange(27), torch.arange(35, 65)])  # two images of cluster 2
    unsure = p.clone()
    unsure[45:] = torch.tensor([0.0, 0.0, 0.45, 0.55])
    why = {
        entry.name: entry.why
        for entry in find_categories(z[few], unsure[few], *planted[3:], ["ant", "bee"]).listed
    }
    assert why == {
        "ant": "",
        "bee": "",
        "new-1": "20 of its 30 images are not clear",
        "new-2": "it has only 2 images",
    }
    near = z.clone()
    near[category == 2] = features(torch.zeros(10, dtype=torch.int64), noise=0.01, seed=5)
    (entry,) = [entry for entry in found_in(planted, z=near).listed if entry.name == "new-2"]
    assert entry.doubtful and (
        entry.why == "its center is so near to that of ant that it may be a part of it"
    )
    assert entry.nearest_known[0] == "ant" and entry.nearest_known[1] > 0.99


def test_other_images_are_placed_as_before(planted, tmp_path):
    found = found_in(planted)
    found.categories.write(tmp_path / "categories.safetensors")
    kept = read_categories(tmp_path / "categories.safetensors")
    assert (kept.names, kept.known) == (found.categories.names, 2)
    again = place(kept, planted[1][30:40], planted[2][30:40])
    assert again.status == found.placed.status[30:40]
    assert all(torch.equal(a, b[30:40]) for a, b in zip(again[:4], found.placed[:4]))


def test_the_map_keeps_groups_apart_also_for_images_outside_of_the_tsne(monkeypatch):
    category = torch.tensor([0] * 40 + [1] * 40)
    for most in (5000, 30):
        monkeypatch.setattr("eagc_ops.training.analysis.map_2d.MOST", most)
        found = map_2d(features(category))
        points = found.points
        middles = [points[category == c].mean(0) for c in (0, 1)]
        nearest = torch.stack([(points - middle).norm(dim=1) for middle in middles]).argmin(0)
        assert torch.equal(nearest, category)
        assert ("computed for 30 of the 80 images" in found.text) == (most == 30)
        assert (found.points == map_2d(features(category)).points).all()


@pytest.mark.parametrize("count", [1, 2, 5, 6, 9])
def test_a_map_of_few_images(count):
    points = map_2d(torch.randn(count, 8, generator=torch.Generator().manual_seed(0))).points
    assert points.shape == (count, 2) and points.isfinite().all()


def test_two_categories_of_many_directions_are_two_and_parts_of_one_are_not():
    """Images 0.6 from their own center: another category is about as far, half of the same one is near."""
    generator = torch.Generator().manual_seed(0)

    def images(center, count):
        return F.normalize(center + 0.2 * torch.randn(count, 100, generator=generator), dim=1)

    one, other = F.normalize(torch.eye(2, 100) + 0.4 * torch.eye(2, 100).flip(0), dim=1)

    def why(new):
        z = torch.cat([images(one, 60), new])
        category = torch.tensor([0] * 60 + [2] * len(new))
        p = torch.full((len(z), 3), 0.05).scatter(1, category[:, None], 0.9)
        labelled = torch.cat([images(one, 20), images(-other, 20)])
        label = torch.tensor([0] * 20 + [1] * 20)
        return next(
            e.why for e in find_categories(z, p, labelled, label, ["ant", "bee"]).listed if e.kind == "new"
        )

    assert why(images(other, 60)) == ""
    assert why(images(one, 60)).startswith("its center is so near to that of ant")
