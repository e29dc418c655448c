"""EAGC with a ViT from timm: `AnchoredEncoder` gives z and z_ref with one pass through the trunk.

    python examples/timm_vit.py

The blocks below the trainable ones are frozen and the same in the student and in the reference model, so
they run once. The images are synthetic and the ViT is small and has random weights; use your own with
`pretrained=True`.
"""

import timm
import torch
from torch import nn
from torch.nn import functional as F

from eagc_ops import EAGC, AnchoredEncoder, Subspace

CLASSES, KNOWN = 6, 3


def make_images(per_class=40):
    """Images (N, 3, 32, 32), classes (N,), and the mask (N,): True = labelled."""
    patterns = torch.randn(CLASSES, 3, 32, 32)
    label = torch.arange(CLASSES * per_class) % CLASSES
    mask = (label < KNOWN) & (torch.rand(len(label)) < 0.5)
    return patterns[label] + 0.5 * torch.randn(len(label), 3, 32, 32), label, mask


def main():
    torch.manual_seed(0)
    images, label, mask = make_images()
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, patch_size=8, depth=4)
    encoder = AnchoredEncoder(vit, grad_from_block=3)  # trains the last block, freezes the rest
    head = nn.Linear(vit.embed_dim, CLASSES)
    tokens = encoder.trunk(images[mask])

    # The reference model: the last block trained on labelled images alone, then frozen beside the student's.
    start = encoder.tail_state()
    reference_head = nn.Linear(vit.embed_dim, KNOWN)
    optimizer = torch.optim.AdamW([*encoder.tail.parameters(), *reference_head.parameters()], lr=1e-3)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(reference_head(encoder.student(tokens)), label[mask]).backward()
        optimizer.step()
    encoder.set_reference()  # a frozen copy of the tail as it is now
    encoder.load_tail(start)  # the student starts from the pretrained weights

    eagc = EAGC(Subspace.conceptor(encoder.anchor(tokens)))
    optimizer = torch.optim.AdamW([*encoder.tail.parameters(), *head.parameters()], lr=1e-3)
    losses = []
    for _ in range(6):
        for rows in torch.randperm(len(images)).split(48):
            views = images[rows].repeat(2, 1, 1, 1)
            views = views + 0.1 * torch.randn_like(views)
            labelled = mask[rows].repeat(2)
            z, z_ref = encoder(views, labelled_rows=labelled.nonzero().flatten())
            z = eagc(z, z_ref, labelled)
            logits = head(z)
            first, second = logits.log_softmax(1).chunk(2)
            loss = F.cross_entropy(logits[labelled], label[rows].repeat(2)[labelled])
            loss = loss + F.kl_div(first, second.detach(), log_target=True, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    frozen = [name for name, p in encoder.named_parameters() if not p.requires_grad and p.grad is not None]
    print(f"loss: {sum(losses[:5]) / 5:.3f} -> {sum(losses[-5:]) / 5:.3f}")
    print(f"frozen parameters with a gradient: {len(frozen)}")
    print(f"rows of z_ref that were not computed: {z_ref.isnan().all(1).sum()} of {len(z_ref)}")


if __name__ == "__main__":
    main()
