"""EAGC with mixed precision, a GradScaler and gradient accumulation.

    python amp_accumulation.py

The anchor term is not linear in the gradient, so it must be scaled as the loss is. The scale token does that: it is 0,
it is added to the loss, and the gradient that reaches it is the scale. The script shows that scaled and accumulated
gradients equal the plain ones with the token, and how wrong they are without it.
"""

import torch
from torch import nn
from torch.nn import functional as F

from eagc_ops import EAGC, Subspace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INPUT, DIM, CLASSES, STEPS = 32, 16, 10, 4


def gradients(encoder, head, eagc, reference, batches, *, scaled, token):
    """Gradient of the encoder's weight, accumulated over the micro-batches, and the mean loss."""
    scaler = torch.amp.GradScaler(DEVICE, enabled=scaled)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    optimizer.zero_grad()
    total = 0.0
    for images, label, mask in batches:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            z = encoder(images)
            with torch.no_grad():
                z_ref = reference(images)
            scale_token = 0.0
            if token:
                z, scale_token = eagc(z, z_ref, mask, return_token=True)
            else:
                z = eagc(z, z_ref, mask)
            logits = head(z)
            loss = F.cross_entropy(logits[mask], label[mask]) + logits.logsumexp(1).mean()
            loss = (loss + scale_token) / len(batches)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    gradient = encoder.weight.grad.clone()
    scaler.step(optimizer)  # skips the step if a gradient overflowed
    scaler.update()
    return gradient, total


def main():
    torch.manual_seed(0)
    encoder, reference = (nn.Linear(INPUT, DIM, device=DEVICE) for _ in range(2))
    reference.requires_grad_(False)
    head = nn.Linear(DIM, CLASSES, device=DEVICE)
    eagc = EAGC(Subspace.conceptor(reference(torch.randn(500, INPUT, device=DEVICE))), lambda_a=50.0)
    batches = [
        (torch.randn(64, INPUT), torch.randint(CLASSES, (64,)), torch.arange(64) % 2 == 0)
        for _ in range(STEPS)
    ]
    batches = [tuple(x.to(DEVICE) for x in batch) for batch in batches]
    weights = [{k: v.clone() for k, v in m.state_dict().items()} for m in (encoder, head)]

    def run(**how):
        for module, state in zip((encoder, head), weights):
            module.load_state_dict(state)
        return gradients(encoder, head, eagc, reference, batches, **how)[0]

    plain = run(scaled=False, token=True)
    for name, gradient in (
        ("with the token", run(scaled=True, token=True)),
        ("without it", run(scaled=True, token=False)),
    ):
        print(
            f"scaled gradient against the plain one, {name}: {(gradient - plain).norm() / plain.norm():.1e}"
        )
    losses = [
        gradients(encoder, head, eagc, reference, batches, scaled=True, token=True)[1] for _ in range(30)
    ]
    print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
