"""Another answer from corrections: what a person said holds, and teaches where other images belong."""

import pytest
import torch
from torch.nn import functional as F

from eagc_ops.app.places import PlaceError
from eagc_ops.discovery.edits import Edits
from eagc_ops.discovery.refining import Present, changes_between, edited, refined

PATHS = [f"{i}.jpg" for i in range(8)]
NONE = torch.zeros(8, dtype=torch.bool)


def present(category=(0, 1, 2, 2, 3, 3, 4, 4), corrected=NONE, named=()):
    """Known: cat, fox; new: new-1, new-2, new-3."""
    names = ["cat", "fox", "new-1", "new-2", "new-3"]
    return Present(names, 2, torch.tensor(category), corrected, frozenset(named))


def start(edits, **options):
    return edited(present(**options), edits, PATHS)


def test_names_are_given_and_kept():
    first = start(Edits(names={"new-2": " grey  heron "}))
    assert first.names == ["cat", "fox", "new-1", "grey heron", "new-3"]
    assert first.named == {"grey heron"}
    again = edited(Present(first.names, 2, first.category, first.fixed, first.named), Edits(), PATHS)
    assert (again.names, again.named) == (first.names, first.named)


def test_two_of_one_name_are_one():
    wanted = start(Edits(names={"new-2": "Fox", "new-3": "heron"}, merge=[["new-3", "new-1"]]))
    assert wanted.names == ["cat", "fox", "heron"]
    assert wanted.category.tolist() == [0, 1, 2, 2, 1, 1, 2, 2]
    assert wanted.changes["merged"] == [["fox", "new-2"], ["heron", "new-1", "new-3"]]
    assert wanted.called == ["cat", "fox", "heron", "fox", "heron"]


def test_a_merged_category_has_the_name_of_a_person():
    """Whatever its place in the group; else the name of the first of the group."""
    assert start(Edits(merge=[["new-3", "new-1"]])).names == ["cat", "fox", "new-3", "new-2"]
    named = start(Edits(merge=[["new-1", "new-3"]]), named={"new-3"})
    assert (named.names, named.named) == (["cat", "fox", "new-3", "new-2"], {"new-3"})


def test_two_known_categories_are_not_merged():
    with pytest.raises(PlaceError, match="merge: 'cat' and 'fox' are known categories and stay two"):
        start(Edits(merge=[["cat", "new-1"], ["new-1", "fox"]]))


def test_images_are_moved():
    moves = {"2.jpg": "cat", "3.jpg": "heron", "4.jpg": "otter", "5.jpg": "Otter"}
    wanted = start(Edits(names={"new-3": "heron"}, move=moves))
    assert wanted.names == ["cat", "fox", "new-1", "new-2", "heron", "otter"]
    assert wanted.category.tolist() == [0, 1, 0, 4, 5, 5, 4, 4]
    assert wanted.fixed.tolist() == [False, False, True, True, True, True, False, False]
    assert wanted.named == {"heron", "otter"}


def test_an_image_may_be_said_to_be_right():
    """It stays where it is, is fixed there, and is not counted as a correction."""
    wanted = start(Edits(move={"2.jpg": "new-1", "3.jpg": "cat"}))
    assert wanted.category.tolist() == [0, 1, 2, 0, 3, 3, 4, 4]
    assert wanted.fixed.tolist() == [False, False, True, True, False, False, False, False]
    assert (wanted.changes["corrected"], wanted.changes["confirmed"]) == (1, 1)


def test_a_category_made_by_moves_may_be_merged():
    wanted = start(Edits(move={"2.jpg": "otter"}, merge=[["otter", "new-3"]]))
    assert wanted.names == ["cat", "fox", "new-1", "new-2", "otter"]
    assert wanted.category.tolist() == [0, 1, 4, 2, 3, 3, 4, 4]


def test_what_was_said_before_holds():
    """But for what was said about a category that is none."""
    corrected = torch.tensor([0, 1, 1, 0, 0, 0, 1, 0], dtype=torch.bool)
    wanted = start(Edits(not_one_category=["new-3"], merge=[["cat", "new-1"]]), corrected=corrected)
    assert wanted.names == ["cat", "fox", "new-2"]
    assert wanted.category.tolist() == [0, 1, 0, 0, 2, 2, -1, -1]
    assert wanted.fixed.tolist() == [False, True, True, False, False, False, False, False]


def test_a_split_keeps_what_was_put_there():
    """The part with the corrected image keeps the name, the others get free ones."""
    points = F.normalize(
        torch.tensor([[0.0, 0, 1]] * 3 + [[1, 0.1 * i, 0] for i in range(3)] + [[0, 1, 0]] * 2), dim=1
    )
    now = present(category=(0, 1, 1, 2, 2, 2, 2, 2), corrected=torch.arange(8) == 7, named={"new-1"})
    wanted = edited(now, Edits(split={"new-1": 2}), PATHS, points)
    assert wanted.names == ["cat", "fox", "new-1", "new-2", "new-3", "new-4"]
    assert wanted.category.tolist() == [0, 1, 1, 5, 5, 5, 2, 2]
    assert wanted.changes["split"] == {"new-1": ["new-1", "new-4"]}
    assert wanted.fixed.tolist() == [False] * 7 + [True]


def planted(images=60, seed=0):
    """(features, label, truth): four directions of equal size, with noise; the first two are known."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(4 * images) % 4
    features = F.one_hot(truth, 16) + 0.25 * torch.randn(len(truth), 16, generator=generator)
    label = torch.where((torch.arange(len(truth)) < 40) & (truth < 2), truth, -1)
    return features, label, truth


@pytest.fixture(scope="module")
def answered():
    """An answer that took two categories for one, and edits that put three images of the other right."""
    features, label, truth = planted()
    free = label < 0
    category = truth[free].clamp_max(2)
    paths = [str(i) for i in range(len(category))]
    now = Present(["cat", "fox", "new-1"], 2, category, torch.zeros(len(category), dtype=torch.bool))
    others = (truth[free] == 3).nonzero().flatten()[:3].tolist()
    odd = int((truth[free] == 0).nonzero()[0])  # the person says of this cat that it is a fox
    edits = Edits(names={"new-1": "heron"}, move={**{paths[i]: "otter" for i in others}, paths[odd]: "fox"})
    wanted = edited(now, edits, paths)
    return now, edits, wanted, refined(features, label, wanted), truth[free], paths, odd


def test_three_corrections_show_a_category(answered):
    _, _, wanted, answer, truth, _, odd = answered
    assert answer.names == ["cat", "fox", "heron", "otter"]
    right = answer.category == truth
    assert right[~wanted.fixed].double().mean() > 0.95
    assert not right[odd]


def test_what_a_person_said_is_certain(answered):
    _, _, wanted, answer, _, _, _ = answered
    assert answer.category[wanted.fixed].equal(wanted.category[wanted.fixed])
    own = answer.probabilities[planted()[1] < 0]
    assert own[wanted.fixed].amax(1).eq(1).all()
    assert answer.probabilities.sum(1).allclose(torch.ones(len(answer.probabilities)))
    assert own.argmax(1).equal(answer.category)


def test_changes_are_those_of_the_docs(answered):
    now, edits, wanted, answer, truth, paths, odd = answered
    changes = changes_between(now, wanted, answer, edits, paths, 1)
    assert list(changes) == [
        "round", "sentence", "names", "merged", "split", "dissolved", "corrected", "confirmed",
        "moved", "sizes"
    ]  # fmt: skip
    by = {entry["path"]: entry for entry in changes["moved"]}
    assert by[str(odd)] == {"path": str(odd), "from": "cat", "to": "fox", "by": "person"}
    assert {entry["by"] for path, entry in by.items() if path not in edits.move} == {"answer"}
    assert len(by) == sum(
        wanted.called[a] != answer.names[b] for a, b in zip(now.category.tolist(), answer.category.tolist())
    )
    others = len(by) - 4
    assert changes["sentence"] == (
        f"4 images were corrected and 1 category was named; {others} other images changed their category."
    )
    assert changes["sizes"]["otter"] == [0, int((answer.category == 3).sum())]
    assert changes["sizes"]["heron"][0] == int((truth >= 2).sum())


def test_a_named_category_is_never_lost():
    """Even if its images look like those of another one; a category without a name may be left out."""
    features, label, truth = planted()
    category = truth[label < 0].clone()
    alike = (category == 3).nonzero().flatten()
    features[(label < 0).nonzero().flatten()[alike]] = features[(label < 0) & (truth == 2)][: len(alike)]
    category[alike[8:]] = 2  # eight images that look like the others of new-1 form new-2
    paths = [str(i) for i in range(len(category))]
    now = Present(["cat", "fox", "new-1", "new-2"], 2, category, torch.zeros(len(category), dtype=torch.bool))
    kept = refined(features, label, edited(now, Edits(names={"new-2": "heron"}), paths))
    assert "heron" in kept.names
    assert (kept.category == kept.names.index("heron")).any()


def test_images_of_a_dissolved_category_go_elsewhere():
    features, label, truth = planted()
    category = truth[label < 0]
    now = Present(["cat", "fox", "a", "b"], 2, category, torch.zeros(len(category), dtype=torch.bool))
    answer = refined(features, label, edited(now, Edits(not_one_category=["b"]), [str(i) for i in category]))
    assert answer.names == ["cat", "fox", "a"]
    assert answer.category.max() == 2
