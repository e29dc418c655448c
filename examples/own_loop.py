"""EAGC in a training loop of your own, in plain PyTorch. Every line that EAGC adds is marked `# EAGC`.

    python examples/own_loop.py

The data are synthetic: ten classes, five of them known, half of the images of known classes labelled. The
encoder and the two losses stand for those of your method.
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from eagc_ops import EAGC, Subspace  # EAGC

INPUT, DIM, CLASSES, KNOWN = 32, 16, 10, 5


def make_images(per_class=200):
    """Images (N, INPUT), classes (N,), and the mask (N,): True = labelled."""
    centres = 2 * torch.randn(CLASSES, INPUT)
    label = torch.arange(CLASSES * per_class) % CLASSES
    mask = (label < KNOWN) & (torch.rand(len(label)) < 0.5)
    return centres[label] + torch.randn(len(label), INPUT), label, mask


def gcd_loss(logits, label, mask):
    """Cross-entropy on labelled rows; on all rows agreement of the two views and balanced predictions."""
    supervised = F.cross_entropy(logits[mask], label[mask])
    first, second = logits.softmax(1).chunk(2)
    agreement = -((first * second).sum(1) + 1e-8).log().mean()
    mean = logits.softmax(1).mean(0)
    return supervised + agreement + (mean * mean.log()).sum()


def train_reference(encoder, images, label):
    """The reference model: a copy of the encoder, trained on labelled images alone and then frozen."""
    reference, head = copy.deepcopy(encoder), nn.Linear(DIM, KNOWN)
    optimizer = torch.optim.SGD([*reference.parameters(), *head.parameters()], lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        F.cross_entropy(head(reference(images)), label).backward()
        optimizer.step()
    return reference.eval().requires_grad_(False)


def main():
    torch.manual_seed(0)
    images, label, mask = make_images()
    encoder = nn.Sequential(nn.Linear(INPUT, 64), nn.ReLU(), nn.Linear(64, DIM))
    head = nn.Linear(DIM, CLASSES)
    reference = train_reference(encoder, images[mask], label[mask])  # EAGC
    eagc = EAGC(Subspace.conceptor(reference(images[mask])), record=True)  # EAGC
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)

    losses = []
    for _ in range(10):
        for rows in torch.randperm(len(images)).split(128):
            views = images[rows].repeat(2, 1)  # two views of every image, one after the other
            views = views + 0.3 * torch.randn_like(views)
            labelled = mask[rows].repeat(2)  # one value for each row: True = labelled
            z = encoder(views)
            z = eagc(z, reference(views), labelled)  # EAGC
            loss = gcd_loss(head(z), label[rows].repeat(2), labelled)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    print(f"loss: {sum(losses[:5]) / 5:.3f} -> {sum(losses[-5:]) / 5:.3f}")
    print(f"mean tau of the last batch's unlabelled rows: {eagc.last_tau.nanmean():.3f}")


if __name__ == "__main__":
    main()
