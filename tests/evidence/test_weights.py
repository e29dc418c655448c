"""Pictures of weights: the values drawn are computed again from the files of small runs."""

import re
import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import small_runs
import torch
from matplotlib.figure import Figure
from pages import Page
from sklearn.manifold import TSNE
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer
from torch.nn import functional as F

from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.evidence import weight_figures, weights
from eagc_ops.evidence.commands.report import main as report_command
from eagc_ops.evidence.weights import (
    KnownSubspace,
    attention_maps,
    choose,
    cls_attention,
    image_sample,
    novel_sample,
    spectrum,
)
from eagc_ops.training.data import open_data
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.models.backbones import load_backbone
from eagc_ops.training.report.page import write_report
from eagc_ops.training.report.runs import grouped, read_run
from eagc_ops.training.runs import train

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")
SETS = ("labelled", "known, unlabelled", "novel")


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Plain with seeds 2 and 1, coordinated with seed 1; and one whose reference model is another."""
    home = tmp_path_factory.mktemp("runs")
    settings = {
        f"{name}{seed}": {"seed": seed, "eagc": name == "eagc"}
        for name, seed in (("plain", 2), ("plain", 1), ("eagc", 1))
    }
    settings["other1"] = {"seed": 1, "eagc": False, "reference_epochs": 1}
    for name, switches in settings.items():
        train(small_runs.small_config(data, epochs=2, aperture=1.5, **switches), home / name)
    return {name: home / name for name in settings}


def drawn(paths, output, **settings):
    """The page; its figures and captions by what they show; features and places of each t-SNE."""
    figures, maps, save, tsne = [], [], Figure.savefig, weight_figures.tsne
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
        patch.setattr(
            weight_figures, "tsne", lambda points: maps.append((points, tsne(points))) or maps[-1][1]
        )
        draw = partial(weight_figures.weight_figures, **settings)
        text = write_report(paths, output, weights=draw).read_text()
    captions = Page(text).captions
    assert len(captions) == len(figures)
    starts = {"Spectrum": "spectrum", "Energy ratio E": "energy", "t-SNE": "tsne", "Attention": "attention"}
    found = {
        name: pair
        for pair in zip(figures, captions)
        for start, name in starts.items()
        if pair[1].startswith(start)
    }
    return text, found, maps


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    return drawn(list(runs.values()), tmp_path_factory.mktemp("report"))


def features(path, data):
    """z (labelled, unlabelled) of a run's encoder (None: the pretrained one), by timm's own forward."""
    opened = open_data("folder", data["root"], split_file=data["split_file"], image_size=16)
    vit = load_backbone("vit_digits", data["weights"], image_size=16, channels=3)
    if path is not None:
        tensors, _ = load_checkpoint(path / "last.safetensors")
        tail = {
            name.removeprefix("encoder."): value
            for name, value in tensors.items()
            if name.startswith("encoder.")
        }
        vit.load_state_dict({**vit.state_dict(), **tail})
    vit.eval()
    with torch.no_grad():
        return [
            torch.cat([vit(opened.test_transform(subset[i][0])[None]) for i in range(len(subset))])
            for subset in (opened.labelled, opened.unlabelled)
        ], opened


@pytest.fixture(scope="module")
def energies(runs, data):
    """(plain, eagc, Ebar) of seed 1 by sets, in fp64, in the subspace that eagc1 keeps."""
    tensors, _ = load_checkpoint(runs["eagc1"] / "last.safetensors")
    matrix = tensors["eagc.matrix"].double()
    found = []
    for name in ("plain1", "eagc1"):
        (labelled, unlabelled), opened = features(runs[name], data)
        novel = opened.unlabelled.labels >= 3
        sets = [z.double() for z in (labelled, unlabelled[~novel], unlabelled[novel])]
        found.append([((z @ matrix * z).sum(1) / z.square().sum(1)).numpy() for z in sets])
    return (*found, float(tensors["eagc.energy_ref"]))


def assert_counts(patch, values):
    """A histogram of shares holds `values`: the right number below each edge, up to rounding."""
    shares, edges, _ = patch.get_data()
    counts = shares * len(values)
    np.testing.assert_allclose(counts, counts.round(), atol=1e-9)
    below = np.concatenate([[0], counts.cumsum()])
    for edge, count in zip(edges[1:-1], below[1:-1]):
        assert (values < edge - 1e-5).sum() <= round(count) <= (values < edge + 1e-5).sum()
    assert round(below[-1]) == len(values)


def test_the_histograms_hold_the_energies_of_whole_sets(page, energies):
    figure, caption = page[1]["energy"]
    *by_run, energy_ref = energies
    assert [len(values) for values in by_run[0]] == [18, 18, 24]
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == [
        "A: energy ratio E",
        "A: projection weight tau, not used by it",
        "B: energy ratio E",
        "B: projection weight tau",
    ]
    for row, sets in enumerate(by_run):
        energy_axis, tau_axis = figure.axes[2 * row : 2 * row + 2]
        outlines = [
            [patch for patch in axis.patches if not patch.get_fill()] for axis in (energy_axis, tau_axis)
        ]
        for i, values in enumerate(sets):
            assert_counts(outlines[0][i], values)
            tau = (1 - values / (energy_ref + 1e-6)).clip(0, 1)
            assert_counts(outlines[1][i], tau)
            assert outlines[0][i].get_label() == f"{SETS[i]}: {len(values)}, mean {values.mean():.3f}"
        assert energy_axis.lines[0].get_xdata() == pytest.approx([energy_ref] * 2)
        assert [text.get_text() for text in energy_axis.texts] == [f"Ebar = {energy_ref:.3f}"]
        assert sum(values.std() > 1e-3 for values in sets) == 3  # not all alike
    assert "A has no subspace and is measured in that of B, which has the same reference model." in caption
    assert "Left out, because no subspace of the same reference model exists: C." in caption
    assert "seed 1, weights after the last epoch (2 epochs)" in caption


def test_the_spectrum_is_that_of_the_reference_features(page, runs):
    experiment = Experiment(read_run(runs["eagc1"]).config)
    experiment.prepare(runs["eagc1"].parent / "references")  # stored there: nothing is trained
    with torch.no_grad():
        tokens = [experiment.student.encoder.trunk(batch.views[0]) for batch in experiment.batches.labelled()]
        z = torch.cat([experiment.student.encoder.anchor(part) for part in tokens]).double()
    correlation = z.T @ z / len(z)
    figure, caption = page[1]["spectrum"]
    curves, ranks = figure.axes
    lines = {line.get_label(): line.get_ydata() for line in curves.lines}
    matrix = load_checkpoint(runs["eagc1"] / "last.safetensors")[0]["eagc.matrix"]
    shown = []
    for aperture in (0.5, 1, 1.5, 2, 4, 10):
        fitted = correlation @ torch.linalg.inv(
            correlation + aperture**-2 * torch.eye(96, dtype=torch.float64)
        )
        expected = torch.linalg.eigvalsh((fitted + fitted.T) / 2).flip(0)
        np.testing.assert_allclose(spectrum(matrix, 1.5, aperture), expected, atol=1e-5)
        label = f"aperture {aperture:g}" + (" (the run)" if aperture == 1.5 else "")
        np.testing.assert_allclose(lines[label], expected, atol=1e-5)
        shown.append(expected.sum())
    np.testing.assert_allclose(ranks.lines[0].get_ydata(), shown, rtol=1e-3)
    for k in (16, 32, 64):
        line = next(line for line in curves.lines if line.get_label() == f"PCA, K = {k}")
        heights = dict(zip(*line.get_data()))
        assert (heights[k], heights[k + 1]) == (1, 0)
    assert "configuration B, seed 1, which was fitted with aperture 1.5" in caption


@pytest.mark.parametrize(
    "vit_settings", [{}, {"qk_norm": True, "reg_tokens": 2}, {"qkv_bias": False, "init_values": 0.1}]
)
def test_attention_is_timms(vit_settings):
    torch.manual_seed(0)
    vit = VisionTransformer((24, 32), 8, 3, num_classes=0, embed_dim=48, depth=3, num_heads=4, **vit_settings)
    for parameter in vit.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    encoder = AnchoredEncoder(vit, 1)
    images = torch.randn(5, 3, 24, 32)
    found = cls_attention(encoder, encoder.trunk(images))
    seen = []
    for block in vit.blocks:
        block.attn.fused_attn = False
    hook = vit.blocks[-1].attn.attn_drop.register_forward_hook(
        lambda module, inputs, output: seen.append(output)
    )
    with torch.no_grad():
        vit(images)
    hook.remove()
    expected = seen[0][:, :, 0]
    assert expected.std() > 0.01  # the weights are not all alike
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(-1), torch.ones(5, 4))
    maps = attention_maps(encoder, images)
    torch.testing.assert_close(maps.flatten(1), expected.mean(1)[:, vit.num_prefix_tokens :])
    assert maps.shape == (5, 3, 4)


def test_a_block_without_plain_attention_has_no_maps():
    vit = VisionTransformer(
        16, 8, 3, num_classes=0, embed_dim=32, depth=2, num_heads=2, block_fn=ParallelScalingBlock
    )
    encoder = AnchoredEncoder(vit, 1, cls_only=False)
    assert attention_maps(encoder, torch.zeros(1, 3, 16, 16)) is None
    with pytest.raises(TypeError, match="ParallelScalingBlock"):
        cls_attention(encoder, encoder.trunk(torch.zeros(1, 3, 16, 16)))


def test_attention_maps_of_the_runs_are_on_the_page(page, runs, data):
    figure, caption = page[1]["attention"]
    columns = 5  # image, pretrained, A, B, C
    rows = [figure.axes[i : i + columns] for i in range(0, len(figure.axes), columns)]
    assert [axis.get_title() for axis in rows[0]] == ["image", "pretrained", "A", "B", "C"]
    _, opened = features(runs["eagc1"], data)
    labels = opened.unlabelled.labels
    positions = [int((labels == c).nonzero()[0]) for c in (0, 1, 2, 3, 4)]
    names = {label: f"class{c}" for label, c in enumerate((3, 0, 4, 1, 2))}
    assert [row[0].get_ylabel() for row in rows] == [
        f"{names[c]}\n{'known' if c < 3 else 'novel'}" for c in range(5)
    ]
    tensors, _ = load_checkpoint(runs["eagc1"] / "last.safetensors")
    for column, tail in (
        (1, {}),
        (3, {k.removeprefix("encoder."): v for k, v in tensors.items() if k.startswith("encoder.")}),
    ):
        vit = load_backbone("vit_digits", data["weights"], image_size=16, channels=3)
        vit.load_state_dict({**vit.state_dict(), **tail})
        vit.blocks[-1].attn.fused_attn = False
        seen = []
        vit.blocks[-1].attn.attn_drop.register_forward_hook(
            lambda module, inputs, output, seen=seen: seen.append(output)
        )
        for row, position in zip(rows, positions):
            image = opened.test_transform(opened.unlabelled[position][0])
            with torch.no_grad():
                vit(image[None])
            np.testing.assert_allclose(
                row[column].images[1].get_array(), seen[-1][0, :, 0, 1:].mean(0).reshape(4, 4), atol=1e-6
            )
            top = max(float(axis.images[1].get_array().max()) for axis in row[1:])
            assert all(axis.images[1].get_clim() == (0, pytest.approx(top)) for axis in row[1:])
            shown = np.asarray(row[0].images[0].get_array())
            plain = (
                np.asarray(opened.unlabelled[position][0].resize((18, 18), 3), dtype=float)[1:17, 1:17] / 255
            )
            np.testing.assert_allclose(shown, plain, atol=0.02)
    assert "seed 1" in caption
    assert "mean over heads" in caption


def test_the_tsne_shows_the_same_novel_images_of_every_encoder(page, runs, data):
    figure, caption = page[1]["tsne"]
    assert [axis.get_title() for axis in figure.axes] == ["pretrained", "A", "B", "C"]
    for axis in figure.axes:
        assert [len(points.get_offsets()) for points in axis.collections] == [
            12,
            12,
        ]  # images of the two novel classes
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["class1", "class2"]
    for said in (
        "24 unlabelled images of 2 novel classes",
        "t-SNE seed 0",
        "seed 1, weights after the last epoch",
        "perplexity 7.67",
    ):
        assert said in caption
    for axis, name, (points, places) in zip(
        figure.axes, ("pretrained", "plain1", "eagc1", "other1"), page[2], strict=True
    ):
        (_, unlabelled), opened = features(runs.get(name), data)
        order = torch.cat([(opened.unlabelled.labels == c).nonzero().flatten() for c in (3, 4)])
        torch.testing.assert_close(points, unlabelled[order], atol=1e-4, rtol=1e-4)
        np.testing.assert_array_equal(
            np.concatenate([part.get_offsets() for part in axis.collections]), places
        )
    (points, places), z = page[2][0], F.normalize(page[2][0][0].double(), dim=1).numpy()
    np.testing.assert_array_equal(
        places, TSNE(2, perplexity=23 / 3, init="pca", random_state=0).fit_transform(z)
    )


def test_samples():
    labels = torch.tensor([0, 5, 1, 6, 2, 7] * 300)
    chosen = novel_sample(labels, 5)
    assert len(chosen) == 900 == len(chosen.unique())
    assert labels[chosen].unique().tolist() == [5, 6, 7]
    # The paper shows the last 50 novel classes
    several = torch.arange(120).repeat(200)
    chosen = novel_sample(several, 60)
    assert several[chosen].unique(return_counts=True)[1].tolist() == [40] * 50
    assert several[chosen].unique().tolist() == list(range(70, 120))
    assert max(chosen) > 7000  # from the whole set, not its beginning
    many = torch.arange(40).repeat(200)
    assert many[image_sample(many, 20)].tolist() == [
        0,
        10,
        19,
        20,
        30,
        39,
    ]  # halves of round numbers go to the even one
    assert len(novel_sample(torch.zeros(9, dtype=torch.int64), 5)) == 0
    assert image_sample(torch.zeros(9, dtype=torch.int64), 5).tolist() == [0]


def group(name, seeds, operator):
    configs = [SimpleNamespace(seed=seed, has_operator=operator) for seed in seeds]
    return SimpleNamespace(name=name, runs=[SimpleNamespace(config=config) for config in configs])


def test_the_lowest_common_seed_is_chosen():
    chosen, notes = choose([group("A", (3, 2, 1), False), group("B", (0, 2, 3), True)])
    assert [(name, run.config.seed) for name, run in chosen] == [("A", 2), ("B", 2)]
    assert notes == []
    chosen, _ = choose([group("A", (3, 1), False), group("B", (2,), True)])
    assert [run.config.seed for _, run in chosen] == [1, 2]


def test_of_many_configurations_the_plain_one_is_among_those_shown():
    many = [group(f"{i}", (0,), i != 8) for i in range(10)]
    chosen, notes = choose(many)
    assert [name for name, _ in chosen] == ["0", "1", "2", "3", "4", "8"]
    assert notes == ["pictures of weights show 6 configurations, and not 5, 6, 7, 9"]


def test_the_page_stands_alone_and_is_small(page):
    text, figures, _ = page
    assert set(figures) == {"spectrum", "energy", "tsne", "attention"}
    assert len(text) < 2_000_000
    embedded = re.findall(r'xlink:href="([^#].{21})', text)
    assert embedded
    assert set(embedded) == {"data:image/png;base64,"}
    assert not re.search(r"(?:src|href)=\"(?!#|data:image/png;base64,)", text)
    problem = "60 images: 18 labelled ones of 3 known classes, 42 unlabelled ones of 5 classes in all."
    assert all(problem in caption and "test transform" in caption for _, caption in figures.values())


def test_without_the_flag_no_weights_are_read(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "load_checkpoint", None)
    text = write_report(list(runs.values()), tmp_path).read_text()
    assert "data:image" not in text
    assert "t-SNE" not in text


def test_a_run_without_its_data_is_named_and_the_rest_is_drawn(page, runs, data, tmp_path, capsys):
    """Of two runs one has lost its data; moved data are found where the options say."""
    shutil.copytree(data["root"], tmp_path / "moved")
    lost = small_runs.small_config({**data, "root": str(tmp_path / "moved")}, epochs=1, seed=1, eagc=False)
    train(lost, tmp_path / "lost")
    (tmp_path / "moved").rename(tmp_path / "new place")
    with pytest.warns(UserWarning, match=r"^lost: no pictures of its weights: root .*moved is not a folder"):
        text, figures, maps = drawn([tmp_path / "lost", runs["eagc1"]], tmp_path / "out")
    lines = re.findall(r"<li>(lost: no pictures.*?)</li>", text)
    assert len(lines) == 1
    assert "moved" in lines[0]
    assert [axis.get_title() for axis in figures["tsne"][0].axes] == ["pretrained", "with EAGC"]
    np.testing.assert_array_equal(maps[0][1], page[2][0][1])  # the same picture on every page
    assert all(axis.get_title(loc="left").startswith("with EAGC") for axis in figures["energy"][0].axes)
    assert len(figures["energy"][0].axes) == 2
    arguments = [str(tmp_path / "lost"), "-o", str(tmp_path / "again")]
    capsys.readouterr()
    assert report_command([*arguments, "--pictures", "--root", str(tmp_path / "new place")]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (f"report: {tmp_path / 'again' / 'report.html'}\n", "")
    text = (tmp_path / "again" / "report.html").read_text()
    assert "t-SNE of 24 unlabelled images" in text
    assert "Energy ratio E" not in text  # no run of the report has a subspace
    with pytest.raises(SystemExit) as stopped:
        report_command([*arguments, "--root", "x"])
    assert stopped.value.code == 2
    assert (
        capsys.readouterr().err
        == "eagc report: --root is for --pictures: without it, neither data nor weights are read\n"
    )


def test_other_weights_are_refused(runs, data, tmp_path):
    torch.manual_seed(1)
    torch.save(load_backbone("vit_digits", image_size=16).state_dict(), tmp_path / "other.pth")
    with pytest.warns(
        UserWarning,
        match="eagc1: no pictures of its weights: weights is a different pretrained encoder",
    ):
        text, figures, maps = drawn([runs["eagc1"]], tmp_path, weights=str(tmp_path / "other.pth"))
    assert set(figures) == {"spectrum"}  # S is in the checkpoint
    assert text.count("<li>eagc1: no pictures") == 1
    assert maps == []


def test_groups_of_a_pca_subspace_draw_no_conceptor_spectrum(runs):
    run = read_run(runs["eagc1"])
    known = KnownSubspace("A", run._replace(config=run.config.replace(subspace="pca")), None)
    assert weight_figures.spectrum_figure([known]) is None
    assert grouped([run])[0].name == "A"


def test_energies_of_a_run_with_a_whitened_energy_are_its_own(data, tmp_path):
    train(small_runs.small_config(data, epochs=1, energy="whitened"), tmp_path / "run")
    tensors, _ = load_checkpoint(tmp_path / "run" / "last.safetensors")
    M, w = tensors["eagc.basis"].double(), tensors["eagc.weights"].double()
    A, B = M @ w.diag() @ M.T, M @ M.T
    looks = weights.look_at_weights(grouped([read_run(tmp_path / "run")])).looks
    (look,) = (look for look in looks if look.run is not None)
    z = features(tmp_path / "run", data)[0][0].double()
    exact = torch.stack([(row @ A @ row) / (row @ B @ row) for row in z])
    assert look.energies.keys() == set(SETS)
    torch.testing.assert_close(look.energies["labelled"].double(), exact, rtol=0, atol=1e-4)
    notes = weight_figures.energy_figure(looks).notes
    assert any("With energy='whitened' the feature is first whitened" in note for note in notes)
