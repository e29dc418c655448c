"""AnchoredEncoder against whole forwards of timm's own VisionTransformer."""

import copy
import subprocess
import sys

import pytest
import timm
import torch
from timm.layers import Mlp
from timm.models.vision_transformer import (
    Block,
    DiffParallelScalingBlock,
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
)
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from eagc_ops.encoder import AnchoredEncoder

D, DEPTH, N = 48, 4, 17  # 16 patches and the class token

VARIANTS = {
    "plain": {},
    "no_bias": {"qkv_bias": False, "proj_bias": False},
    "layer_scale": {"init_values": 0.3},
    "qk_norm": {"qk_norm": True},
    "scale_norm": {"scale_attn_norm": True, "scale_mlp_norm": True},
    "registers": {"reg_tokens": 4},
    "dinov2_like": {"reg_tokens": 4, "no_embed_class": True, "init_values": 0.5},
    "pre_norm": {"pre_norm": True},
    "dynamic_size": {"dynamic_img_size": True},
}


def make_vit(seed=0, **kwargs):
    torch.manual_seed(seed)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": D, "depth": DEPTH, "num_heads": 4, "num_classes": 0}
    vit = timm.models.VisionTransformer(**(size | kwargs))
    for parameter in (
        vit.parameters()
    ):  # timm's initial weights make attention almost uniform and biases zero: a weak test
        nn.init.normal_(parameter, std=0.2 if parameter.ndim > 1 else 0.5)
    return vit


def images(rows=6, seed=1):
    return torch.randn(rows, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def relative(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def perturbed(vit, grad_from_block):
    """Another model with the same trunk and a different tail."""
    other = copy.deepcopy(vit)
    with torch.no_grad():
        for parameter in other.blocks[grad_from_block:].parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return other


def frozen_copy(vit, grad_from_block):
    """The oracle: a whole model with the protocol's freezing rule (block index >= grad_from_block), written
    out by itself.
    """
    full = copy.deepcopy(vit)
    for name, parameter in full.named_parameters():
        parameter.requires_grad = name.startswith("blocks.") and int(name.split(".")[1]) >= grad_from_block
    return full


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_to_two_full_forwards(variant, fused):
    vit = make_vit(**VARIANTS[variant])
    for block in vit.blocks:
        block.attn.fused_attn = fused
    reference = perturbed(vit, 3)
    x = images()
    with torch.no_grad():
        want, want_ref = copy.deepcopy(vit)(x), reference(x)
    assert relative(want, want_ref) > 0.05
    z, z_ref = AnchoredEncoder(vit, 3, reference=reference)(x)
    assert relative(z, want) <= 1e-6
    assert relative(z_ref, want_ref) <= 1e-6
    assert z.requires_grad
    assert not z_ref.requires_grad
    full = AnchoredEncoder(vit, 3, reference=reference, cls_only=False)
    z, z_ref = full(x)
    assert torch.equal(z, want)
    assert torch.equal(z_ref, want_ref)


@pytest.mark.parametrize("grad_from_block", [0, 2, 3])
def test_trunk_is_bit_equal(grad_from_block):
    vit = make_vit()
    seen = {}
    oracle = copy.deepcopy(vit)
    oracle.blocks[grad_from_block].register_forward_pre_hook(lambda _, args: seen.update(tokens=args[0]))
    x = images()
    oracle(x)
    tokens = AnchoredEncoder(vit, grad_from_block).trunk(x)
    assert torch.equal(tokens, seen["tokens"])
    assert tokens.shape == (6, N, D)
    assert not tokens.requires_grad


@pytest.mark.parametrize("cls_only", [True, False])
@pytest.mark.parametrize("grad_from_block", [1, 3])
@pytest.mark.parametrize("variant", ["plain", "qk_norm", "dinov2_like", "no_bias"])
def test_gradients_equal_those_of_the_whole_model(variant, grad_from_block, cls_only):
    vit = make_vit(**VARIANTS[variant])
    full = frozen_copy(vit, grad_from_block)
    x, weight = images(), torch.randn(6, D)
    (full(x) * weight).sum().backward()
    encoder = AnchoredEncoder(
        vit, grad_from_block, reference=perturbed(vit, grad_from_block), cls_only=cls_only
    )
    z, _ = encoder(x)
    (z * weight).sum().backward()
    largest = max(p.grad.abs().max() for p in full.parameters() if p.grad is not None)
    for (name, got), want in zip(vit.named_parameters(), full.parameters(), strict=True):
        assert got.requires_grad == want.requires_grad, name
        assert (got.grad is None) == (want.grad is None), name
        if want.grad is not None:
            # the true gradient of a key bias is 0 (softmax does not see it), so compare on the scale of all
            # gradients
            assert (got.grad - want.grad).abs().max() <= 1e-5 * want.grad.abs().max() + 1e-7 * largest, name
    assert all(p.grad is None for p in encoder.reference.parameters())


def test_gradients_agree_to_fp64_precision():
    """In fp64 the two forms of the last block are the same function, not only close."""
    for variant in VARIANTS.values():
        vit = make_vit(**variant).double()
        full = frozen_copy(vit, 3)
        x, weight = images().double(), torch.randn(6, D).double()
        (full(x) * weight).sum().backward()
        (AnchoredEncoder(vit, 3, reference=False)(x)[0] * weight).sum().backward()
        for got, want in zip(vit.blocks[3].parameters(), full.blocks[3].parameters(), strict=True):
            assert (got.grad - want.grad).abs().max() <= 1e-12 * max(1.0, want.grad.abs().max().item())


def test_only_the_tail_is_trainable():
    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_224.dino", num_classes=0)
        encoder = AnchoredEncoder(vit)
        encoder.set_reference()
    trainable = {name for name, p in encoder.named_parameters() if p.requires_grad}
    assert (
        sum(p.numel() for p in encoder.parameters() if p.requires_grad) == 7_087_872
    )  # one block of a ViT-B
    assert {name.split(".")[2] for name in trainable} == {"11"}  # neither the final norm nor the reference
    assert sum(p.numel() for p in encoder.reference.parameters()) == 7_087_872


def test_labelled_rows_only():
    vit = make_vit()
    encoder = AnchoredEncoder(vit, 3, reference=perturbed(vit, 3))
    tokens = encoder.trunk(images())
    every = encoder.anchor(tokens)
    rows = torch.tensor([4, 0, 3])
    some = encoder.anchor(tokens, rows)
    assert some.shape == every.shape
    assert relative(some[rows], every[rows]) <= 1e-6  # another batch size may take another GEMM
    assert some[[1, 2, 5]].isnan().all()
    assert encoder.anchor(tokens, torch.empty(0, dtype=torch.int64)).isnan().all()


def test_unselected_rows_are_not_read():
    vit = make_vit()
    encoder = AnchoredEncoder(vit, 3, reference=perturbed(vit, 3))
    tokens = encoder.trunk(images())
    rows = torch.tensor([1, 5])
    clean = encoder.anchor(tokens, rows)
    tokens[[0, 2, 3, 4]] = float("nan")
    assert torch.equal(encoder.anchor(tokens, rows)[rows], clean[rows])
    z = encoder.student(tokens)  # rows are independent in the student as well
    assert z[rows].isfinite().all()
    z[rows].sum().backward()


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (torch.tensor([True, False, True, False, False, False]), "nonzero"),
        (torch.tensor([0, 1], dtype=torch.int32), "int64"),
        (torch.tensor([[0, 1]]), "shape"),
        (torch.tensor([0, 6]), "two views"),
        (torch.tensor([-1]), "two views"),
        (torch.tensor([1, 0, 1, 0, 0, 1]), "6 indices, but only 2 different ones.*mask"),
    ],
)
def test_bad_rows_are_refused(rows, error):
    encoder = AnchoredEncoder(make_vit(), 3)
    encoder.set_reference()
    with pytest.raises((TypeError, IndexError, ValueError), match=error):
        encoder(images(), rows)


def saved_storages(function, smallest):
    """(data_ptr, bytes) of every storage of at least `smallest` bytes that autograd keeps while `function`
    runs.
    """
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.nbytes() >= smallest:
            kept[storage.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = function()
    return output, kept


def test_one_tensor_of_all_tokens_is_kept_for_backward():
    """Of all (B, N, D) tensors only the normalised tokens: no input of a norm, no queries, keys or values."""
    vit = make_vit()
    encoder = AnchoredEncoder(vit, 3)
    encoder.set_reference()
    tokens = encoder.trunk(images(rows=32))
    size = tokens.numel() * tokens.element_size()
    assert size > 4 * max(
        p.numel() for p in vit.blocks[3].parameters()
    )  # a weight cannot be mistaken for a token tensor
    _output, kept = saved_storages(lambda: encoder(tokens), size)
    (only,) = kept.values()
    normalised = nn.functional.layer_norm(tokens, (D,), eps=vit.blocks[3].norm1.eps)
    assert list(only.untyped_storage()) == list(normalised.untyped_storage())


def test_backward_forms_no_gradient_of_all_tokens():
    """From a frozen trunk nothing of N tokens is trained, so every gradient is smaller."""
    encoder = AnchoredEncoder(make_vit(), 3, reference=False)
    tokens = encoder.trunk(images(rows=32))
    z, _ = encoder(tokens)
    sizes, visited, left = [], set(), [z.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in visited:
            visited.add(node)
            node.register_hook(
                lambda inputs, outputs: sizes.extend(t.numel() for t in (*inputs, *outputs) if t is not None)
            )
            left += [following for following, _ in node.next_functions]
    z.square().sum().backward()
    assert len(sizes) > 20 and max(sizes) < tokens.numel()


@pytest.mark.parametrize("cls_only", [True, False])
def test_whole_last_block_does_not_pin_tokens_through_the_norm(cls_only):
    vit = make_vit()
    encoder = AnchoredEncoder(vit, 3, cls_only=cls_only)
    tokens = encoder.trunk(images(rows=32))
    norm_input = {}
    vit.norm.register_forward_pre_hook(lambda _, args: norm_input.update(t=args[0]))
    encoder.student(tokens)
    assert norm_input["t"].untyped_storage().nbytes() == 32 * D * 4
    official, kept = saved_storages(
        lambda: frozen_copy(vit, 3)(images(rows=32)), tokens.numel() * 4
    )  # the check sees it where it is
    assert len(kept) > 2
    assert official.shape == (32, D)


def test_gradient_reaches_the_pixels_through_the_frozen_trunk():
    vit = make_vit()
    full = frozen_copy(vit, 3)
    x = images().requires_grad_()
    weight = torch.randn(6, D)
    (want,) = torch.autograd.grad((full(x) * weight).sum(), x)
    encoder = AnchoredEncoder(vit, 3, reference=False)
    (got,) = torch.autograd.grad((encoder(x, pixel_grad=True)[0] * weight).sum(), x)
    assert relative(got, want) <= 1e-5
    vit.set_grad_checkpointing()
    (again,) = torch.autograd.grad((encoder(x, pixel_grad=True)[0] * weight).sum(), x)
    assert torch.equal(again, got)
    with pytest.raises(ValueError, match="pixel_grad=True"):
        encoder(x)
    with torch.no_grad():
        assert not encoder(x)[0].requires_grad


@pytest.mark.parametrize("cls_only", [True, False])
def test_train_eval_and_no_grad_agree(cls_only):
    vit = make_vit()
    encoder = AnchoredEncoder(vit, 3, reference=perturbed(vit, 3), cls_only=cls_only)
    x = images()
    z, z_ref = encoder.train()(x)
    with torch.no_grad():
        z2, z2_ref = encoder.eval()(x)
    assert torch.equal(z, z2)
    assert torch.equal(z_ref, z2_ref)
    assert not z2.requires_grad


def test_tokens_stand_for_images():
    encoder = AnchoredEncoder(make_vit(), 3, reference=False)
    x = images()
    z, nothing = encoder(encoder.trunk(x))
    assert torch.equal(z, encoder(x)[0])
    assert nothing is None
    with pytest.raises(ValueError, match=r"\(B, N, 48\)"):
        encoder(torch.zeros(2, N, 40))


@pytest.mark.parametrize("variant", ["plain", "qk_norm", "dinov2_like"])
def test_autocast_is_no_worse_than_the_whole_model(variant):
    """Against fp64, the CLS-only block under bf16 autocast may err as much as the whole forward under the
    same autocast.
    """
    vit = make_vit(**VARIANTS[variant])
    x = images()
    exact = copy.deepcopy(vit).double()(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        whole = copy.deepcopy(vit)(x)
        z, z_ref = AnchoredEncoder(vit, 3, reference=copy.deepcopy(vit))(x, torch.tensor([1, 2]))
    error = (z.double() - exact).norm()
    assert 0 < error <= 1.2 * (whole.double() - exact).norm()
    torch.testing.assert_close(z_ref[[1, 2]], z[[1, 2]].detach(), atol=0.05, rtol=0.05)
    z.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in vit.blocks[3].parameters())


def test_autocast_does_not_round_the_scores():
    """What enters the output projection of the CLS-only attention has the bits it has without autocast."""
    vit = make_vit()
    encoder = AnchoredEncoder(vit, 3)
    tokens, seen = encoder.trunk(images()), []
    vit.blocks[3].attn.proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    encoder.student(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        encoder.student(tokens)
    assert torch.equal(*seen)


def test_bfloat16_model():
    vit = make_vit()
    exact = copy.deepcopy(vit).double()(images().double())
    whole = copy.deepcopy(vit).bfloat16()(images().bfloat16())
    z = AnchoredEncoder(vit.bfloat16(), 3, reference=False)(images().bfloat16())[0]
    assert z.dtype == torch.bfloat16
    assert (z.double() - exact).norm() <= 1.5 * (whole.double() - exact).norm()


def test_compiles_without_a_graph_break():
    vit = make_vit(depth=2)
    encoder = AnchoredEncoder(vit, 1, reference=perturbed(vit, 1))
    want, want_ref = encoder(images(), torch.tensor([0, 2]))
    z, z_ref = torch.compile(encoder, backend="aot_eager", fullgraph=True)(images(), torch.tensor([0, 2]))
    assert relative(z, want) <= 1e-6
    torch.testing.assert_close(z_ref, want_ref, equal_nan=True)


def test_reference_is_a_frozen_copy():
    vit = make_vit()
    encoder = AnchoredEncoder(vit, 3)
    with pytest.raises(RuntimeError, match="set_reference"):
        encoder.anchor(encoder.trunk(images()))
    with pytest.raises(RuntimeError, match=r"z_ref = None would switch the anchor off.*reference=False"):
        encoder(images())
    encoder.set_reference()
    before = encoder(images())[1]
    with torch.no_grad():
        for parameter in encoder.tail.parameters():
            parameter.mul_(1.5)
    z, z_ref = encoder(images())
    assert torch.equal(z_ref, before)
    assert relative(z, z_ref) > 0.01


def test_tail_state_travels():
    """Tail of a trained model -> reference of another encoder, and -> its student (a warm start)."""
    vit = make_vit()
    trained = AnchoredEncoder(perturbed(vit, 2), 2, reference=False)
    state = trained.tail_state()
    assert {name.split(".")[1] for name in state} == {"2", "3"}
    encoder = AnchoredEncoder(vit, 2, reference=state)
    want = trained(images())[0]
    z, z_ref = encoder(images())
    assert torch.equal(z_ref, want)
    assert relative(z, want) > 0.01
    encoder.load_tail(state)
    assert torch.equal(encoder(images())[0], want)
    state["blocks.2.norm1.weight"].zero_()  # the state is a copy
    assert torch.equal(trained(images())[0], want)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda s: s.pop("blocks.3.mlp.fc1.bias"), "blocks.3.mlp.fc1.bias is missing"),
        (
            lambda s: s.update({"blocks.2.norm1.weight": torch.zeros(D)}),
            "blocks.2.norm1.weight is not part of the tail",
        ),
        (
            lambda s: s.update({"blocks.3.norm1.weight": torch.zeros(D + 1)}),
            r"blocks.3.norm1.weight is \(torch.float32, \(49,\)\)",
        ),
        (lambda s: s.update({"blocks.3.norm1.weight": torch.zeros(D).double()}), "float64"),
    ],
)
def test_tail_state_that_does_not_fit(change, error):
    encoder = AnchoredEncoder(make_vit(), 3)
    state = encoder.tail_state()
    change(state)
    for load in (encoder.set_reference, encoder.load_tail):
        with pytest.raises(ValueError, match=error):
            load(state)
    assert encoder.reference is None  # a refused state leaves nothing behind


def test_state_dict_round_trip():
    vit = make_vit()
    encoder = AnchoredEncoder(vit, 3, reference=perturbed(vit, 3))
    other = AnchoredEncoder(make_vit(seed=7), 3)
    with pytest.raises(RuntimeError, match=r"reference\.0\.norm1\.weight"):
        other.load_state_dict(encoder.state_dict())
    other.set_reference()
    other.load_state_dict(encoder.state_dict())
    for got, want in zip(other(images()), encoder(images()), strict=True):
        assert torch.equal(got, want)
    assert other.trunk_fingerprint() == encoder.trunk_fingerprint()


def test_fingerprint_follows_the_trunk_and_nothing_else():
    vit = make_vit()
    encoder = AnchoredEncoder(vit, 3)
    before = encoder.trunk_fingerprint()
    with torch.no_grad():
        vit.blocks[3].mlp.fc1.bias.add_(1)
    assert encoder.trunk_fingerprint() == before
    assert AnchoredEncoder(copy.deepcopy(vit), 2).trunk_fingerprint() != before
    with torch.no_grad():
        vit.blocks[2].mlp.fc1.bias[0] += 1e-6
    assert encoder.trunk_fingerprint() != before


def set_value(name):
    def change(vit):
        with torch.no_grad():
            vit.get_parameter(name).flatten()[5] += 1e-6

    return change


def wider_heads(vit):
    for block in vit.blocks:
        block.attn.num_heads, block.attn.head_dim = 2, D // 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (set_value("blocks.2.attn.proj.weight"), "blocks.2.attn.proj.weight differs"),
        (set_value("patch_embed.proj.weight"), "patch_embed.proj.weight differs"),
        (set_value("norm.weight"), "norm.weight differs"),
        (wider_heads, r"blocks.0.attn \(Attention\) differs"),
        (lambda vit: setattr(vit.blocks[3].norm1, "eps", 1e-3), r"blocks.3.norm1 \(LayerNorm\) differs"),
        (
            lambda vit: setattr(vit.blocks[1], "ls1", timm.layers.LayerScale(D)),
            "blocks.1.ls1.gamma is only in one",
        ),
    ],
)
def test_reference_with_another_trunk_is_refused(change, error):
    vit = make_vit()
    other = copy.deepcopy(vit)
    change(other)
    with pytest.raises(ValueError, match=error):
        AnchoredEncoder(vit, 3, reference=other)


def test_trunk_that_is_not_frozen_is_refused():
    encoder = AnchoredEncoder(make_vit(), 2, reference=False)
    encoder.vit.blocks[1].mlp.fc2.bias.requires_grad_()
    with pytest.raises(RuntimeError, match=r"vit.blocks.1.mlp.fc2.bias requires grad.*frozen trunk"):
        encoder(images())


@pytest.mark.parametrize(
    "block_fn", [ResPostBlock, ParallelScalingBlock, DiffParallelScalingBlock, ParallelThingsBlock]
)
def test_foreign_blocks_are_refused_and_work_whole(block_fn):
    vit = make_vit(block_fn=block_fn)
    with pytest.raises(TypeError, match=rf"vit.blocks.3 \(timm.*{block_fn.__name__}\).*cls_only=False"):
        AnchoredEncoder(vit, 3)
    z = AnchoredEncoder(vit, 3, reference=False, cls_only=False)(images())[0]
    assert torch.equal(z, copy.deepcopy(vit)(images()))


class TokenMixingMlp(Mlp):
    def forward(self, x):
        return super().forward(x) + x.mean(1, keepdim=True)


class WideBlock(Block):
    def forward(self, x, **_):
        return super().forward(x) * 2


def swap(path, make):
    def change(vit):
        vit.set_submodule(f"blocks.3.{path}", make(vit.blocks[3].get_submodule(path)))

    return change


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (swap("attn", lambda _: timm.layers.Attention(D, 4, gated=True)), "attn.*has a gate"),
        (swap("attn", lambda _: timm.layers.AttentionRope(D, 4)), "attn.*AttentionRope"),
        (swap("attn", lambda _: timm.layers.DiffAttention(D, 4)), "attn.*DiffAttention"),
        (
            swap("attn.qkv", lambda old: torch.nn.utils.parametrizations.weight_norm(old)),
            "attn.qkv.*not a plain Linear",
        ),
        (swap("mlp", lambda _: TokenMixingMlp(D)), "mlp.*TokenMixingMlp.*mix tokens"),
        (swap("mlp", lambda _: timm.layers.GlobalResponseNormMlp(D, use_conv=False)), "mlp.*mix tokens"),
        (swap("norm1", lambda _: nn.GroupNorm(1, N)), "norm1.*GroupNorm"),
        (swap("attn.k_norm", lambda _: nn.Softmax(-1)), "attn.k_norm.*Softmax"),
        (swap("ls2", lambda _: nn.Tanh()), "ls2.*Tanh"),
        (swap("", lambda _: None), "WideBlock"),
    ],
)
def test_foreign_parts_of_the_last_block_are_refused(change, part):
    if part == "WideBlock":
        vit = make_vit(block_fn=WideBlock)
    else:
        vit = make_vit()
        change(vit)
    with pytest.raises(TypeError, match=rf"vit.blocks.3.*{part}"):
        AnchoredEncoder(vit, 3)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"global_pool": "avg"},
        {"global_pool": ""},
        {"global_pool": "map", "class_token": False},
        {"fc_norm": True},
        {"drop_path_rate": 0.1},
        {"proj_drop_rate": 0.1},
        {"attn_drop_rate": 0.1},
        {"pos_drop_rate": 0.1},
        {"patch_drop_rate": 0.1},
    ],
)
def test_vits_with_another_feature_or_with_noise_are_refused(kwargs):
    with pytest.raises(ValueError, match=r"global_pool='token'|drops at random"):
        AnchoredEncoder(make_vit(**kwargs), 3)


def test_other_vits_are_refused():
    with pytest.raises(TypeError, match="vit is a VisionTransformerDistilled"):
        AnchoredEncoder(timm.create_model("deit_tiny_distilled_patch16_224", num_classes=0, img_size=32), 11)
    with pytest.raises(TypeError, match="vit is a Linear"):
        AnchoredEncoder(nn.Linear(2, 2), 0)
    vit = make_vit()
    vit.patch_embed.norm = nn.BatchNorm1d(16)
    with pytest.raises(ValueError, match=r"vit.patch_embed.norm \(BatchNorm1d\)"):
        AnchoredEncoder(vit, 3)
    with pytest.raises(
        ValueError, match=r"grad_from_block must be one of the blocks 0..3 of vit, got 11; 3 trains the last"
    ):
        AnchoredEncoder(make_vit())


@pytest.mark.parametrize("path", ["", ".norm1", ".attn", ".attn.qkv"])
def test_hooks_that_would_not_run_are_refused(path):
    encoder = AnchoredEncoder(make_vit(), 3, reference=False)
    handle = encoder.vit.get_submodule(f"blocks.3{path}").register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="hook"):
        encoder(images())
    handle.remove()
    encoder(images())


def test_import_needs_no_timm():
    """The package must import without timm; the encoder then says what to install."""
    program = (
        "import sys; sys.modules['timm'] = None\n"
        "from eagc_ops.encoder import AnchoredEncoder\n"
        "try: AnchoredEncoder(None)\n"
        "except ImportError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "eagc-ops[train]" in result.stdout


@pytest.mark.parametrize("cls_only", [True, False])
def test_compiled_blocks_give_the_same_and_equal_ones_share_a_graph(cls_only):
    vit, x, rows = make_vit(), images(), torch.tensor([0, 3])
    plain, compiled = (AnchoredEncoder(copy.deepcopy(vit), 2, cls_only=cls_only) for _ in range(2))
    reference = perturbed(vit, 2)
    for encoder in (plain, compiled):
        encoder.set_reference(reference)
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    before = set(compiled.state_dict())
    compiled.compile(backend=counter)
    assert set(compiled.state_dict()) == before
    gradients = []
    for encoder in (plain, compiled):
        z, z_ref = encoder(x, rows)
        z.square().sum().backward()
        gradients.append([z.detach(), z_ref[rows], *(p.grad for p in encoder.tail.parameters())])
    for ours, theirs in zip(*gradients):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert 0 < counter.frame_count < 6  # blocks that run: two each of trunk, student and reference
