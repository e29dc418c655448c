"""Public kernels that nobody here wrote, on five targets: values against torch, findings.

    pip install --no-deps liger-kernel cut-cross-entropy fla-core flash-linear-attention einops
    python tests/strangers.py

Prints a table: "right", or what was wrong. The sources of these packages are not part of this one.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable

import torch
from torch.nn import functional

import ptx_machine
from ptx_machine.cpu import cuda_on_cpu

TARGETS = ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
PACKAGES = ("triton", "liger-kernel", "cut-cross-entropy", "fla-core")
Pairs = list[tuple[torch.Tensor, torch.Tensor]]
Function = Callable[..., torch.Tensor]


def lse_forward() -> Pairs:
    from cut_cross_entropy.cce_lse_forward import cce_lse_forward_kernel

    e, c = torch.randn(160, 64).bfloat16(), torch.randn(300, 64).bfloat16()
    return [(cce_lse_forward_kernel(e, c), (e.float() @ c.float().T).logsumexp(1))]


def indexed_dot() -> Pairs:
    from cut_cross_entropy.indexed_dot import indexed_neg_dot_forward_kernel

    e, c = torch.randn(160, 64).bfloat16(), torch.randn(300, 64).bfloat16()
    at = torch.randint(0, 300, (160,))
    mine = indexed_neg_dot_forward_kernel(e, c, at, out_dtype=torch.float32)
    return [(mine, -(e * c[at]).float().sum(1))]  # the products are rounded to bf16


def rms_norm() -> Pairs:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    x, w = torch.randn(20, 96, requires_grad=True), torch.randn(96, requires_grad=True)
    mine = LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False)
    exact = functional.rms_norm(x, (96,), w, 1e-6)
    g = torch.randn_like(x)
    return [(mine, exact), *zip(*(torch.autograd.grad(y, (x, w), g) for y in (mine, exact)))]


def swiglu() -> Pairs:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    a, b = torch.randn(20, 96, requires_grad=True), torch.randn(20, 96, requires_grad=True)
    exact, g = functional.silu(a) * b, torch.randn_like(a)
    grads = torch.autograd.grad(exact, (a, b), g)
    a, b = (x.detach().clone().requires_grad_() for x in (a, b))  # its backward writes over them
    mine = LigerSiLUMulFunction.apply(a, b)
    return [(mine, exact), *zip(torch.autograd.grad(mine, (a, b), g), grads)]


def cross_entropy() -> Pairs:
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    logits, at = torch.randn(20, 300), torch.randint(0, 300, (20,))
    mine = LigerCrossEntropyFunction.apply(logits.clone(), at, None, -100, 0.0, 0.0, "mean", None, False)
    return [(mine[0] if isinstance(mine, tuple) else mine, functional.cross_entropy(logits, at))]


def rope() -> Pairs:
    from liger_kernel.ops.rope import LigerRopeFunction

    q, k = torch.randn(2, 4, 10, 32), torch.randn(2, 2, 10, 32)
    angle = torch.arange(10.0)[:, None] * 10_000 ** (-torch.arange(16) / 16)
    cos, sin = (torch.cat([f(angle), f(angle)], 1)[None] for f in (torch.cos, torch.sin))

    def turned(x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-high, low], -1) * sin[:, None]

    exact = turned(q), turned(k)
    return list(zip(LigerRopeFunction.apply(q.clone(), k.clone(), cos, sin), exact))


def with_gradients(mine: Function, exact: Function, *inputs: torch.Tensor) -> Pairs:
    """Values and gradients of a function, against the same in fp64."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    wide = [x.double().requires_grad_() for x in inputs]
    y, z = mine(*leaves), exact(*wide)
    g = torch.randn(z.shape)
    y.backward(g.to(y.dtype))
    z.backward(g.double())
    grads = [(x.grad, w.grad) for x, w in zip(leaves, wide) if x.grad is not None and w.grad is not None]
    return [(y.detach(), z.detach()), *grads]


def cce_backward() -> Pairs:
    from cut_cross_entropy import cce, linear_cross_entropy

    cce.sort_logit_avg = lambda x: torch.argsort(x).to(torch.int32)  # torch.compile makes other kernels of it
    e, c = torch.randn(64, 64).bfloat16(), torch.randn(150, 64).mul(0.3).bfloat16()
    at = torch.randint(0, 150, (64,))
    return with_gradients(
        lambda e, c: linear_cross_entropy(e, c, at, impl="cce"),
        lambda e, c: functional.cross_entropy(e @ c.T, at), e, c,
    )  # fmt: skip


def layer_norm() -> Pairs:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return with_gradients(
        lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, 1e-5),
        lambda x, w, b: functional.layer_norm(x, (96,), w, b, 1e-5),
        torch.randn(20, 96), torch.rand(96), torch.randn(96),
    )  # fmt: skip


def group_norm() -> Pairs:
    from liger_kernel.ops.group_norm import LigerGroupNormFunction

    return with_gradients(
        lambda x, w, b: LigerGroupNormFunction.apply(x, w, b, 8, 4, 1e-5),
        lambda x, w, b: functional.group_norm(x, 4, w, b, 1e-5),
        torch.randn(3, 8, 20), torch.rand(8), torch.randn(8),
    )  # fmt: skip


def geglu() -> Pairs:
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    return with_gradients(
        LigerGELUMulFunction.apply,
        lambda a, b: functional.gelu(a, approximate="tanh") * b, torch.randn(20, 96), torch.randn(20, 96),
    )  # fmt: skip


def softmax() -> Pairs:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return with_gradients(LigerSoftmaxFunction.apply, lambda x: x.softmax(-1), torch.randn(20, 96))


def divergences() -> Pairs:
    from liger_kernel.ops.jsd import LigerJSDFunction
    from liger_kernel.ops.kl_div import LigerKLDivLossFunction

    x, y = torch.randn(2, 10, 60).log_softmax(-1)

    def of_jensen_and_shannon(x: torch.Tensor) -> torch.Tensor:
        p, q = y.double().exp(), x.exp()
        middle = (0.5 * p + 0.5 * q).log()
        return (0.5 * p * (y.double() - middle) + 0.5 * q * (x - middle)).sum() / 10

    return [
        *with_gradients(lambda x: LigerJSDFunction.apply(x, y, None, 0.5), of_jensen_and_shannon, x),
        *with_gradients(
            lambda x: LigerKLDivLossFunction.apply(x, y.exp(), "batchmean", False, 1e-10),
            lambda x: functional.kl_div(x, y.double().exp(), reduction="batchmean"), x,
        ),
    ]  # fmt: skip


def fused_linear_cross_entropy() -> Pairs:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    at = torch.randint(0, 100, (24,))
    return with_gradients(
        lambda x, w: LigerFusedLinearCrossEntropyFunction.apply(x, w, at)[0],
        lambda x, w: functional.cross_entropy(x @ w.T, at), torch.randn(24, 32), torch.randn(100, 32),
    )  # fmt: skip


def l2norm() -> Pairs:
    from fla.modules.l2norm import l2norm

    return with_gradients(l2norm, lambda x: functional.normalize(x, dim=-1), torch.randn(40, 64))


def short_convolution() -> Pairs:
    from fla.modules.convolution import causal_conv1d

    def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        wide = functional.pad(x.transpose(1, 2), (3, 0))
        return functional.silu(functional.conv1d(wide, w[:, None], groups=64).transpose(1, 2))

    x, w = torch.randn(2, 48, 64), torch.randn(64, 4)
    return with_gradients(lambda x, w: causal_conv1d(x, w, None, activation="silu")[0], exact, x, w)


def gated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Linear attention whose state decays, step by step."""
    state, out = torch.zeros(*q.shape[::2], 32, 32).double(), []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None] + k[:, t, :, :, None] * v[:, t, :, None]
        out.append((q[:, t, :, :, None] * 32**-0.5 * state).sum(2))
    return torch.stack(out, 1)


def linear_attention() -> Pairs:
    from fla.ops.linear_attn import chunk_linear_attn

    return with_gradients(
        lambda q, k, v: chunk_linear_attn(q, k, v, normalize=False)[0],
        lambda q, k, v: gated(q, k, v, torch.zeros_like(q)), *(torch.randn(3, 1, 64, 2, 32) * 0.3),
    )  # fmt: skip


def gated_linear_attention() -> Pairs:
    from fla.ops.gla import chunk_gla

    q, k, v = torch.randn(3, 1, 64, 2, 32) * 0.3
    decay = functional.logsigmoid(torch.randn(1, 64, 2, 32))
    return with_gradients(lambda *x: chunk_gla(*x)[0], gated, q, k, v, decay)


EXACT = 2e-3
ROUGH = 3e-2  # products of tf32 or bf16
KERNELS: dict[Callable[[], Pairs], float] = {
    lse_forward: EXACT, indexed_dot: EXACT, cce_backward: ROUGH,
    rms_norm: EXACT, layer_norm: EXACT, group_norm: EXACT, swiglu: EXACT, geglu: EXACT, softmax: EXACT,
    cross_entropy: EXACT, fused_linear_cross_entropy: EXACT, divergences: EXACT, rope: EXACT,
    l2norm: EXACT, short_convolution: EXACT, linear_attention: ROUGH, gated_linear_attention: ROUGH,
}  # fmt: skip


def verdict(kernel: Callable[[], Pairs], arch: str) -> str:
    torch.manual_seed(0)
    try:
        with ptx_machine.on_machine(arch) as reports, cuda_on_cpu(arch):
            pairs = kernel()
    except Exception as error:  # whatever a stranger's code raises is the result
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    findings = [found for report in reports for found in (*report.races, *report.violations)]
    if findings:
        return f"{len(findings)} findings: {findings[0]}"[:160]
    if not reports:
        return "no launch"
    error = max((mine.float() - exact.float()).abs().max().item() for mine, exact in pairs)
    return "right" if error < KERNELS[kernel] else f"error {error:.1e}"


def main() -> None:
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES))
    chosen = [kernel for kernel in KERNELS if kernel.__name__ in (sys.argv[1:] or kernel.__name__)]
    print(f"\n| kernel | {' | '.join(TARGETS)} |\n|---{'|---' * len(TARGETS)}|")
    for kernel in chosen:
        print(f"| {kernel.__name__} | {' | '.join(verdict(kernel, arch) for arch in TARGETS)} |", flush=True)


if __name__ == "__main__":
    main()
