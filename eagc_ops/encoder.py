"""A ViT whose frozen trunk serves the student and the reference model: images -> trunk -> tail -> z.

Blocks below `grad_from_block` are frozen and equal in both, so the trunk runs once and only the tail runs
twice. Only the CLS token leaves the last block, so that block computes nothing for the other tokens.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .kernels import without_autocast

__all__ = ["AnchoredEncoder"]

_Shared = dict[str, Tensor | str]

_NO_REFERENCE = (
    "this encoder has no reference tail, and z_ref = None would switch the anchor off: call set_reference() "
    "first, use encoder.student(encoder.trunk(images)) for z alone, or build the encoder with reference=False"
)


class AnchoredEncoder(nn.Module):
    """Student and reference features of one timm `VisionTransformer`, with one pass through the shared trunk.

    The feature is the CLS token after the final norm, (B, D), not normalised, as `vit(images)` returns it
    with `num_classes=0`. Building the encoder freezes everything in `vit` except `blocks[grad_from_block:]`,
    the tail; the final norm stays frozen too.

    Args:
        vit: timm VisionTransformer with a class token and global_pool="token". It is not copied, and its
            classifier head is not used.
        grad_from_block: first trainable block (11: the last block of a ViT-B).
        reference: the source of the reference tail, see `set_reference`. None: set it later; a forward
            before that raises an error. False: no reference, and z_ref is None.
        cls_only: compute only the CLS token in the last block. The result is the same to rounding (about
            3e-7 relative in fp32).

    Example:
        >>> import timm, torch
        >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=3)
        >>> encoder = AnchoredEncoder(vit, grad_from_block=2)
        >>> encoder.set_reference()  # a copy of the current tail
        >>> z, z_ref = encoder(torch.randn(4, 3, 32, 32), labelled_rows=torch.tensor([0, 2]))
        >>> z.requires_grad, z_ref.requires_grad, torch.allclose(z[[0, 2]], z_ref[[0, 2]], atol=1e-5)
        (True, False, True)
        >>> z_ref[1].isnan().all().item()  # not computed
        True
    """

    def __init__(
        self,
        vit: nn.Module,
        grad_from_block: int = 11,
        *,
        reference: nn.Module | Mapping[str, Tensor] | Literal[False] | None = None,
        cls_only: bool = True,
    ) -> None:
        super().__init__()
        self._refuse(vit, cls_only)
        blocks: Any = vit.blocks
        depth = len(blocks)
        if not (isinstance(grad_from_block, int) and 0 <= grad_from_block < depth):
            raise ValueError(
                f"grad_from_block must be one of the blocks 0..{depth - 1} of vit, got {grad_from_block!r}; "
                f"{depth - 1} trains the last block, 0 trains them all"
            )
        self.vit: Any = vit  # Any: timm's models are not typed
        self.grad_from_block = grad_from_block
        self.cls_only = cls_only
        self.reference: nn.ModuleList | None = None
        self._cls_of_block: Callable[[Any, Tensor], Tensor] = _cls_of_block  # or compiled, see `compile`
        for name, parameter in vit.named_parameters():
            parameter.requires_grad_(self._in_tail(name))
        self._without_reference = reference is False
        if reference is not None and reference is not False:
            self.set_reference(reference)

    def forward(
        self, x: Tensor, labelled_rows: Tensor | None = None, *, pixel_grad: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """(z, z_ref) of images (B, C, H, W), or of tokens (B, N, D) from `trunk`.

        `labelled_rows` is the argument `rows` of `anchor`. With `reference=False`, z_ref is None.
        """
        if self.reference is None and not self._without_reference:
            raise RuntimeError(_NO_REFERENCE)
        tokens = self.trunk(x, pixel_grad=pixel_grad)
        return self.student(tokens), None if self.reference is None else self.anchor(tokens, labelled_rows)

    def trunk(self, images: Tensor, *, pixel_grad: bool | None = False) -> Tensor:
        """The tokens (B, N, D) that enter block `grad_from_block`.

        `pixel_grad=True` keeps a graph so that gradients reach the images; None does so if the images require
        gradients. Images are freed once they are patches, unless the caller holds them. Tokens (B, N, D)
        from a trunk cache are returned unchanged.
        """
        if images.ndim == 3:
            return self._checked(images)
        pixel_grad = images.requires_grad if pixel_grad is None else pixel_grad
        for name, parameter in self.vit.named_parameters():
            if parameter.requires_grad and not self._in_tail(name):
                raise RuntimeError(
                    f"vit.{name} requires grad, but student and reference can only share a frozen trunk: "
                    "call requires_grad_(False) on it, or build the encoder with a smaller grad_from_block "
                    f"(now {self.grad_from_block})"
                )
        if images.requires_grad and torch.is_grad_enabled() and not pixel_grad:
            raise ValueError(
                "images require grad but pixel_grad=False would cut their gradient: pass pixel_grad=True, or "
                "images.detach()"
            )
        with torch.set_grad_enabled(pixel_grad and torch.is_grad_enabled()):
            x = self._embed(images)
            del images
            return self._as_tokens(self._run(self.vit.blocks[: self.grad_from_block], x))

    def student(self, tokens: Tensor) -> Tensor:
        """z (B, D), from the student's tail."""
        return self._feature(self.tail, tokens)

    @torch.no_grad()
    def anchor(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        """z_ref (B, D), from the frozen reference tail.

        `rows` are the int64 indices (n,) of the rows to compute. Make them from the loader's CPU mask: the
        host waits for a boolean index on a device. The other rows are NaN, so that nobody uses them
        unnoticed. None computes every row.
        """
        if self.reference is None:
            raise RuntimeError(_NO_REFERENCE)
        if rows is None:
            return self._feature(self.reference, tokens)
        if rows.dtype != torch.int64 or rows.ndim != 1:
            raise TypeError(
                f"rows must be int64 indices of shape (n,), got {rows.dtype} of shape {tuple(rows.shape)}; "
                "for a mask on the CPU pass mask.nonzero().flatten()"
            )
        # Only on the CPU: on a device the host would wait for the check.
        checkable = rows.device.type == "cpu" and not torch.compiler.is_compiling()
        if checkable and rows.numel() and not (rows.min() >= 0 and rows.max() < len(tokens)):
            raise IndexError(
                f"rows must be between 0 and {len(tokens) - 1}, got {rows.min()} to {rows.max()}; an image "
                "with two views has two rows"
            )
        if checkable and len(rows.unique()) < len(rows):
            raise ValueError(
                f"rows has {len(rows)} indices, but only {len(rows.unique())} different ones: it looks like "
                "a mask or like labels; for a mask on the CPU pass mask.nonzero().flatten()"
            )
        rows = rows.to(tokens.device, non_blocking=True)
        z = self._feature(self.reference, tokens.index_select(0, rows))
        return z.new_full((len(tokens), z.shape[1]), float("nan")).index_copy_(0, rows, z)

    def set_reference(self, source: nn.Module | Mapping[str, Tensor] | None = None) -> None:
        """Freeze a reference tail: a copy of the current student's (None), a `tail_state()`, or a ViT's.

        Outside the tail, such a ViT must equal this one bit for bit. A tail state says nothing
        about its trunk: store `trunk_fingerprint()` with it.
        """
        if isinstance(source, nn.Module):
            _refuse_other_trunk(
                _shared(self.vit, self.grad_from_block), _shared(source, self.grad_from_block)
            )
            source = {name: value for name, value in source.state_dict().items() if self._in_tail(name)}
        reference = nn.ModuleList(copy.deepcopy(block) for block in self.tail).requires_grad_(False)
        if source is not None:
            self._load(reference, source)
        self.reference = reference

    @property
    def tail(self) -> nn.Sequential:
        """The blocks above the trunk."""
        blocks: nn.Sequential = self.vit.blocks[self.grad_from_block :]
        return blocks

    def train_last(self, blocks: int) -> None:
        """Make the last `blocks` blocks trainable and freeze the rest of the tail.

        A new encoder trains the whole tail. The student may train fewer or more blocks than its reference
        model did; the tail has all of them.
        """
        if not (isinstance(blocks, int) and 1 <= blocks <= len(self.tail)):
            raise ValueError(
                f"blocks must be between 1 and {len(self.tail)}, got {blocks!r}: the tail has no more; to "
                "train more, build the encoder with a smaller grad_from_block"
            )
        for i, block in enumerate(self.tail):
            block.requires_grad_(i >= len(self.tail) - blocks)

    def tail_state(self) -> dict[str, Tensor]:
        """A copy of the student's tail, named as in the ViT (`blocks.11.norm1.weight`)."""
        return {
            name: value.detach().clone()
            for name, value in self.vit.state_dict().items()
            if self._in_tail(name)
        }

    def load_tail(self, state: Mapping[str, Tensor]) -> None:
        """Load a `tail_state()` into the student, for example to start from the reference model."""
        self._load(self.tail, state)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile every block in place, with the arguments of `torch.compile`; call it after `set_reference`.

        Equal blocks share one graph, so twelve blocks compile in the time of one.
        """
        for block in (*self.vit.blocks, *(self.reference or ())):
            block.compile(*args, **options)
        self._cls_of_block = torch.compile(_cls_of_block, *args, **options)

    def trunk_fingerprint(self) -> str:
        """The sha256 of all that is shared: weights and their names, the structure, `grad_from_block`."""
        digest = hashlib.sha256(str(self.grad_from_block).encode())
        for name, value in _shared(self.vit, self.grad_from_block).items():
            kind = (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else value
            digest.update(f"{name} {kind}\n".encode())
            if isinstance(value, Tensor):
                data = value.detach().cpu().contiguous().flatten().view(torch.uint8)
                digest.update(data.numpy().tobytes())
        return digest.hexdigest()

    @property
    def token_shape(self) -> tuple[int, int]:
        """(N, D) of an image's tokens after the trunk."""
        return self.vit.patch_embed.num_patches + self.vit.num_prefix_tokens, self.vit.embed_dim

    def _refuse(self, vit: nn.Module, cls_only: bool) -> None:
        """Raise an error that names the part of a backbone that cannot be split or reproduced."""
        _refuse_foreign_vit(vit)
        if cls_only:
            blocks: Any = vit.blocks
            _refuse_foreign_block(blocks[-1], f"blocks.{len(blocks) - 1}")

    def _embed(self, images: Tensor) -> Tensor:
        """What enters block 0."""
        vit = self.vit
        x: Tensor = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
        return x

    def _as_tokens(self, x: Tensor) -> Tensor:
        """What leaves the trunk, as (B, N, D)."""
        return x

    def _in_tail(self, name: str) -> bool:
        return _block_index(name) >= self.grad_from_block

    def _run(self, blocks: Iterable[nn.Module], x: Tensor) -> Tensor:
        recompute = self.vit.grad_checkpointing and torch.is_grad_enabled()
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        return x

    def _feature(self, blocks: Iterable[nn.Module], tokens: Tensor) -> Tensor:
        *middle, last = blocks
        x = self._run(middle, self._checked(tokens))
        # The norm acts on each token alone. norm(x)[:, 0], or a norm of the view x[:, 0], would keep all N
        # tokens for the backward pass.
        cls = self._cls_of_block(last, x) if self.cls_only else self._run([last], x)[:, 0].contiguous()
        z: Tensor = self.vit.norm(cls)
        return z

    def _checked(self, tokens: Tensor) -> Tensor:
        if tokens.ndim != 3 or tokens.shape[2] != self.token_shape[1]:
            raise ValueError(
                f"tokens must be (B, N, {self.token_shape[1]}) as trunk() returns them, got "
                f"{tuple(tokens.shape)}"
            )
        return tokens

    def _load(self, blocks: Iterable[nn.Module], state: Mapping[str, Tensor]) -> None:
        numbered = enumerate(blocks, self.grad_from_block)
        wanted = {
            f"blocks.{i}.{name}": value for i, block in numbered for name, value in block.state_dict().items()
        }
        wrong = [f"{name} is missing" for name in wanted.keys() - state.keys()]
        wrong += [f"{name} is not part of the tail" for name in state.keys() - wanted.keys()]
        for name in wanted.keys() & state.keys():
            want, got = ((value.dtype, tuple(value.shape)) for value in (wanted[name], state[name]))
            wrong += [f"{name} is {got}, not {want}"] if got != want else []
        if wrong:
            raise ValueError(
                f"tail state does not fit blocks {self.grad_from_block}..{len(self.vit.blocks) - 1}: "
                f"{_some(sorted(wrong))}"
            )
        with torch.no_grad():
            for name, value in wanted.items():
                value.copy_(state[name])


def _cls_of_block(block: Any, x: Tensor) -> Tensor:
    """Token 0 (B, D) of a pre-norm block's output for x (B, N, D)."""
    for module in (block, block.norm1, block.attn, block.attn.qkv):
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        if any(getattr(module, kind) for kind in kinds):
            raise RuntimeError(
                f"a hook on the {type(module).__name__} of the last block would not run: build the encoder "
                "with cls_only=False"
            )
    cls = x[:, 0] + block.ls1(_cls_of_attention(block.attn, block.norm1, x))
    out: Tensor = cls + block.ls2(block.mlp(block.norm2(cls)))
    return out


def _cls_of_attention(attn: Any, norm: nn.Module, x: Tensor) -> Tensor:
    """The attention output of token 0 for tokens x (B, N, D), without forming keys and values.

    With one query per head, q . (W_k y_n) = (W_k^T q) . y_n and sum_n p_n (W_v y_n) = W_v (sum_n p_n y_n), so
    both projections act on H vectors per image instead of N tokens: about 2 N D (D - H) multiply-adds fewer.
    The key bias adds the same to every score of a head, so it drops out of the softmax.

    For a LayerNorm, y_n = w * u_n + b with u_n of mean 0 and variance 1. w and b also act on the H
    vectors: (w * W_k^T q) . u_n, and w * (sum_n p_n u_n) + b because p sums to 1. No trained weight acts on
    all N tokens, so with a frozen trunk the backward pass forms no gradient of that size.

    A norm on the keys is not linear: with one, the keys (not the values) are formed.
    """
    heads, width = attn.num_heads, attn.head_dim
    # In the dtype of the weights: autocast would round the scores to 16 bits, which fused attention does not.
    with without_autocast(x.device):
        w_q, w_k, w_v = attn.qkv.weight.view(3, heads * width, -1)
        b_q, b_k, b_v = (None,) * 3 if attn.qkv.bias is None else attn.qkv.bias.view(3, -1)
        u, affine = _without_affine(norm, x.to(w_q.dtype))
        q = F.linear(affine(u[:, 0]), w_q, b_q).unflatten(1, (heads, width))
        q = attn.q_norm(q) * attn.scale
        if isinstance(attn.k_norm, nn.Identity):
            keyed = torch.einsum("bhw,hwd->bhd", q, w_k.unflatten(0, (heads, width)))
            scores = affine(keyed, bias=False) @ u.mT
        else:
            k = attn.k_norm(F.linear(affine(u), w_k, b_k).unflatten(2, (heads, width)))
            scores = torch.einsum("bhw,bnhw->bhn", q, k)
        mixed = affine(scores.softmax(-1) @ u)
        out: Tensor = torch.einsum("bhd,hwd->bhw", mixed, w_v.unflatten(0, (heads, width))).flatten(1)
        out = out if b_v is None else out + b_v
    out = attn.proj(getattr(attn, "norm", nn.Identity())(out))
    return out


def _without_affine(norm: nn.Module, x: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
    """(u, affine) with affine(u) = norm(x). For other norms than LayerNorm, u is norm(x) itself."""
    if not isinstance(norm, nn.LayerNorm):
        return norm(x), lambda y, bias=True: y

    def affine(y: Tensor, bias: bool = True) -> Tensor:
        y = y if norm.weight is None else y * norm.weight
        return y + norm.bias if bias and norm.bias is not None else y

    return F.layer_norm(x, norm.normalized_shape, eps=norm.eps), affine


def _block_index(name: str) -> int:
    match = re.match(r"blocks\.(\d+)\.", name)
    return int(match[1]) if match else -1


def _shared(vit: nn.Module, grad_from_block: int) -> _Shared:
    """What two ViTs must have in common to share a trunk: tensors by name, and the structure."""
    shared: _Shared = {
        f"{name} ({type(module).__name__})": str(
            [module.extra_repr(), *(getattr(module, key, None) for key in ("num_heads", "eps"))]
        )
        for name, module in vit.named_modules()
    }
    shared |= {
        name: value for name, value in vit.state_dict().items() if _block_index(name) < grad_from_block
    }
    return {name: value for name, value in shared.items() if not name.startswith("head")}


def _refuse_other_trunk(ours: _Shared, theirs: _Shared) -> None:
    wrong = [f"{name.strip()} is only in one of them" for name in ours.keys() ^ theirs.keys()]
    for name in ours.keys() & theirs.keys():
        a, b = ours[name], theirs[name]
        if not (
            torch.equal(a, b.to(a.device)) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        ):
            wrong.append(f"{name} differs")
    if wrong:
        raise ValueError(
            "the reference has a different trunk, so the student cannot share its tokens: "
            f"{_some(sorted(wrong))}"
        )


def _some(lines: list[str], most: int = 5) -> str:
    return "; ".join(lines[:most]) + (f"; and {len(lines) - most} more" if len(lines) > most else "")


def _refuse_foreign_vit(vit: Any) -> None:
    """Trunk and pooling are reimplemented here, so they must be timm's; and two passes must not differ."""
    VisionTransformer = _timm()[0].VisionTransformer
    own = ("forward", "forward_features", "forward_head")
    if not isinstance(vit, VisionTransformer) or any(
        getattr(type(vit), f) is not getattr(VisionTransformer, f) for f in own
    ):
        raise TypeError(
            f"vit is a {type(vit).__name__}: only timm's VisionTransformer with its own forward can be split "
            "into trunk and tail"
        )
    if not vit.has_class_token or vit.global_pool != "token" or not isinstance(vit.fc_norm, nn.Identity):
        raise ValueError(
            f"vit has class_token={vit.has_class_token}, global_pool={vit.global_pool!r}, fc_norm "
            f"{type(vit.fc_norm).__name__}: the feature is the CLS token after the final norm; create it "
            "with global_pool='token'"
        )
    for name, module in vit.named_modules():
        rates = [getattr(module, key, 0) for key in ("p", "drop_prob", "prob")]
        if any(isinstance(rate, (int, float)) and rate > 0 for rate in rates) and not name.startswith("head"):
            raise ValueError(
                f"vit.{name} ({type(module).__name__}) drops at random, so student and reference would "
                "differ: set its rate to 0"
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"vit.{name} ({type(module).__name__}) keeps running statistics, so the trunk would not be "
                "frozen: use a ViT without batch norm"
            )


def _refuse_foreign_block(block: Any, name: str) -> None:
    """Name the first part of a block that `_cls_of_block` does not reproduce."""
    models, layers = _timm()
    # These MLPs and norms act on every token alone.
    mlps = [mlp.forward for mlp in (layers.Mlp, layers.GluMlp, layers.SwiGLU)]
    norms = (nn.Identity, nn.LayerNorm, layers.RmsNorm)

    def require(ok: bool, part: str, why: str) -> None:
        if not ok:
            module = block.get_submodule(part)
            path = f"vit.{name}.{part}".rstrip(".")
            raise TypeError(
                f"{path} ({type(module).__module__}.{type(module).__name__}) {why}: build the encoder with "
                "cls_only=False"
            )

    require(type(block).forward is models.Block.forward, "", "is not timm's pre-norm Block")
    require(type(block.attn).forward is models.Attention.forward, "attn", "is not timm's plain Attention")
    require(getattr(block.attn, "gate", None) is None, "attn", "has a gate")
    require(type(block.attn.qkv) is nn.Linear, "attn.qkv", "is not a plain Linear")
    require(type(block.mlp).forward in mlps, "mlp", "may mix tokens")
    attention_norm = ["attn.norm"] if hasattr(block.attn, "norm") else []
    for part in ("norm1", "norm2", "attn.q_norm", "attn.k_norm", *attention_norm):
        require(isinstance(block.get_submodule(part), norms), part, "is not a norm over the last dimension")
    for part in ("ls1", "ls2"):
        require(
            isinstance(block.get_submodule(part), (nn.Identity, layers.LayerScale)),
            part,
            "is not a LayerScale",
        )


def _timm() -> tuple[Any, Any]:
    """(timm.models.vision_transformer, timm.layers), imported late: the operator alone needs no timm."""
    try:
        from timm import layers
        from timm.models import vision_transformer
    except ImportError as error:
        raise ImportError("AnchoredEncoder needs timm: pip install 'eagc-ops[train]'") from error
    return vision_transformer, layers
