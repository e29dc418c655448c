"""The variants of a training step compute the same thing, at different cost."""

import contextlib
import copy
from dataclasses import replace

import pytest
import torch

from eagc_ops.bench.loader import photographs
from eagc_ops.bench.pixel_views import PixelViews
from eagc_ops.bench.steps import (
    OURS,
    OURS_BASELINE,
    RELEASED,
    RELEASED_EAGC,
    VARIANTS,
    Step,
    make_setting,
)
from eagc_ops.kernels import formulas
from eagc_ops.kernels.panels import upper_panels
from eagc_ops.training.data import train_loader
from eagc_ops.training.data.rows import rows_of
from eagc_ops.training.data.trunk_cache import CachedViews, trunk_cache

BY_NAME = {variant.name: variant for variant in VARIANTS}


@pytest.fixture(scope="module")
def setting():
    return make_setting("vit_tiny_patch16_224", rows=16, image_size=32)


@contextlib.contextmanager
def in_fp64(setting):
    """The same setting in fp64, where variants agree to rounding; in the block the loss is in fp64 too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)  # the student casts its outputs to fp32
        yield replace(
            setting,
            vit=copy.deepcopy(setting.vit).double(),
            reference=copy.deepcopy(setting.reference).double(),
            batch=setting.batch._replace(views=[view.double() for view in setting.batch.views]),
        )


def gradients(step, batch=None):
    """Of the trained block and the heads; names lack the encoder's, as variants nest it differently."""
    step.loss(batch).backward()
    encoder = step.encoder if step.variant.released else step.encoder.vit
    named = [(f"encoder.{n}", p) for n, p in encoder.named_parameters()] + [
        (f"heads.{n}", p) for n, p in step.method.named_parameters()
    ]
    by_name = {name: p.grad.clone() for name, p in named if p.grad is not None}
    step.optimizer.zero_grad()
    return by_name


def difference(a, b):
    assert a.keys() == b.keys()
    norm = torch.cat([x.flatten() for x in b.values()]).norm()
    return (torch.cat([(a[name] - b[name]).flatten() for name in a]).norm() / norm).item()


def released_gradients(setting):
    """By whether EAGC takes part."""
    return {
        with_eagc: gradients(Step(setting, BY_NAME[name]))
        for with_eagc, name in ((False, RELEASED), (True, RELEASED_EAGC))
    }


def test_the_last_block_alone_is_trained_and_eagc_changes_its_gradient(setting):
    released = released_gradients(setting)
    assert {name.split(".")[2] for name in released[True] if name.startswith("encoder")} == {"11"}
    assert difference(released[True], released[False]) > 1e-3


def test_every_variant_has_the_gradients_of_the_released_way(setting):
    with in_fp64(setting) as wide:
        released = released_gradients(wide)
        for variant in VARIANTS:
            with_eagc = variant.baseline is not None
            tolerance = 1e-9 if with_eagc else 1e-13  # EAGC keeps its energy reference in fp32
            distance = difference(gradients(Step(wide, variant)), released[with_eagc])
            assert distance < tolerance, variant.name


def test_in_fp32_no_variant_is_less_exact_than_the_released_way(setting):
    with in_fp64(setting) as wide:
        exact = released_gradients(wide)
    released = released_gradients(setting)
    for variant in VARIANTS:
        with_eagc = variant.baseline is not None
        own = difference(gradients(Step(setting, variant)), exact[with_eagc])
        assert own < 2 * difference(released[with_eagc], exact[with_eagc]), variant.name


def test_rows_are_coordinated_at_different_strengths(setting):
    """Or the equality above would say nothing about the projection."""
    z = Step(setting, BY_NAME[OURS]).encoder.student(
        Step(setting, BY_NAME[OURS]).encoder.trunk(torch.cat(setting.batch.views))
    )
    tau = formulas.projection_weight(
        formulas.energy_ratio(z.detach(), setting.subspace.matrix), setting.subspace.energy_ref
    )
    active = tau[~setting.batch.mask]
    assert (active > 0).float().mean() > 0.5 and active.std() > 0.001


def test_every_baseline_is_a_variant_and_differs_in_eagc_only():
    for variant in VARIANTS:
        if variant.baseline is not None:
            base = BY_NAME[variant.baseline]
            assert base.baseline is None and (base.released, base.cls_only) == (
                variant.released,
                variant.cls_only,
            )


def test_memory_of_eagc_is_one_block_and_the_subspace(setting):
    """And as released, a whole second ViT and the tokens that z_ref = norm(x)[:, 0] keeps."""
    memory = {
        name: Step(setting, BY_NAME[name]).memory() for name in (RELEASED, RELEASED_EAGC, OURS_BASELINE, OURS)
    }
    block = sum(p.nbytes for p in setting.vit.blocks[-1].parameters())
    vit = sum(p.nbytes for p in setting.vit.parameters())
    subspace = setting.subspace.matrix.nbytes
    # What the CPU path keeps.
    triangle = sum(panel.nbytes for panel in upper_panels(setting.subspace.matrix, torch.float32))
    # S is there in fp32, bf16 and fp16; Ebar has 4 bytes.
    expected = block + 2 * subspace + triangle + 4
    assert memory[OURS].parameters - memory[OURS_BASELINE].parameters == expected
    assert memory[RELEASED_EAGC].parameters - memory[RELEASED].parameters == vit + subspace
    trained = block + sum(p.nbytes for p in Step(setting, BY_NAME[OURS]).method.parameters())
    assert {m.optimizer for m in memory.values()} == {trained}  # momentum
    rows, dim = 16, setting.vit.embed_dim
    assert (
        0 <= memory[OURS].saved - memory[OURS_BASELINE].saved <= 2 * rows * dim * 4 + rows
    )  # z_ref, z, mask
    assert memory[OURS_BASELINE].saved < memory[RELEASED].saved
    for m in memory.values():
        assert m.peak >= m.parameters + m.optimizer + m.saved


def test_the_add_on_is_all_that_eagc_does(setting):
    """z_ref of the step's own images, then the operator: the labelled rows move towards it."""
    for variant in VARIANTS:
        add_on = Step(setting, variant).add_on()
        assert (add_on is None) == (variant.baseline is None)
        if add_on:
            out = add_on()
            assert out.shape == (16, setting.vit.embed_dim) and out.isfinite().all()


def test_an_evaluation_pass_is_the_same_with_and_without_eagc(setting):
    classes = [Step(setting, BY_NAME[name]).predict() for name in (OURS_BASELINE, OURS)]
    assert torch.equal(*classes) and len(classes[0].unique()) > 1


def test_cached_tokens_and_pixels_give_the_same_step(setting, tmp_path):
    data = photographs(tmp_path, 16, image_size=32)
    step, whole = Step(setting, BY_NAME[OURS]), Step(setting, BY_NAME[RELEASED_EAGC])
    cache = trunk_cache(tmp_path / "cache", step.encoder, data, views=2, progress=False)
    loaders = [
        train_loader(data, batch_size=8, seed=0, fetch=fetch)
        for fetch in (CachedViews(cache, data), PixelViews(data, 2))
    ]
    compared = 0
    for cached, pixels in zip(*(loader.epoch(0) for loader in loaders)):
        cached, pixels = rows_of(cached, setting.device), rows_of(pixels, setting.device)
        assert cached.views[0].ndim == 3 and pixels.views[0].ndim == 4
        assert torch.equal(cached.label, pixels.label)
        # All coordinators run their energy reference on; started anew they see the same batch.
        step.model.eagc.energy_ref.copy_(setting.subspace.energy_ref)
        whole.model.coordinator.energy_ref = setting.subspace.energy_ref.item()
        with in_fp64(setting) as exact:
            views = [view.double() for view in pixels.views]
            truth = gradients(Step(exact, BY_NAME[RELEASED_EAGC]), pixels._replace(views=views))
        rounding = difference(gradients(whole, pixels), truth)
        assert difference(gradients(step, cached), truth) < 2 * rounding < 1e-5
        compared += 1
    assert compared == 2


@pytest.mark.parametrize("rows", [0, 2, 6])
def test_rows_must_come_in_labelled_and_unlabelled_pairs(rows):
    with pytest.raises(ValueError, match=f"rows must be a positive multiple of 4, got {rows}"):
        make_setting("vit_tiny_patch16_224", rows=rows, image_size=32)
