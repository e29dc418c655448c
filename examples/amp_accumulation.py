"""EAGC with mixed precision, a GradScaler and gradient accumulation.

    python examples/amp_accumulation.py

The anchor term is not linear in the gradient, so it must be scaled like the loss. The scale token does that:
it is 0, it is added to the loss, and the gradient that reaches it is the scale. The script first shows that
the scaled gradient is wrong without the token, and then trains with it.
"""

import torch
from torch import nn
from torch.nn import functional as F

from eagc_ops import EAGC, Subspace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INPUT, DIM, CLASSES, MICRO_BATCHES = 32, 16, 10, 4


def backward(encoder, head, reference, eagc, scaler, batches, use_token=True):
    """Accumulate the gradients of the micro-batches, and return the mean loss."""
    total = 0.0
    for images, label, mask in batches:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            z, z_ref = encoder(images), reference(images)
            if use_token:
                z, token = eagc(z, z_ref, mask, return_token=True)
            else:
                z, token = eagc(z, z_ref, mask), 0.0
            logits = head(z)
            loss = F.cross_entropy(logits[mask], label[mask]) + logits.logsumexp(1).mean()
        scaler.scale((loss + token) / len(batches)).backward()
        total += loss.item() / len(batches)
    return total


def main():
    torch.manual_seed(0)
    encoder, reference = (nn.Linear(INPUT, DIM, device=DEVICE) for _ in range(2))
    head = nn.Linear(DIM, CLASSES, device=DEVICE)
    reference.requires_grad_(False)
    eagc = EAGC(Subspace.conceptor(reference(torch.randn(500, INPUT, device=DEVICE))), lambda_a=50.0)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    images = torch.randn(MICRO_BATCHES, 64, INPUT, device=DEVICE)
    label = torch.randint(CLASSES, (MICRO_BATCHES, 64), device=DEVICE)
    mask = (torch.arange(64, device=DEVICE) % 2 == 0).expand(MICRO_BATCHES, 64)  # True = labelled
    batches = list(zip(images, label, mask))
    model = encoder, head, reference, eagc

    def gradient(scaled, use_token):
        optimizer.zero_grad()
        scaler = torch.amp.GradScaler(DEVICE, enabled=scaled)
        backward(*model, scaler, batches, use_token)
        scaler.unscale_(optimizer)
        return encoder.weight.grad.clone()

    plain = gradient(scaled=False, use_token=True)
    for name, use_token in (("with the token", True), ("without it", False)):
        error = (gradient(scaled=True, use_token=use_token) - plain).norm() / plain.norm()
        print(f"scaled gradient against the plain one, {name}: {error:.1e}")

    scaler, losses = torch.amp.GradScaler(DEVICE), []
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(backward(*model, scaler, batches))
        scaler.step(optimizer)  # unscales, and skips the step if a gradient overflowed
        scaler.update()
    print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
