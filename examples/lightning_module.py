"""EAGC in a LightningModule.

    pip install '.[examples]'
    python examples/lightning_module.py

Lightning scales the loss itself, for accumulation and mixed precision, so the training step adds the scale
token. With several devices, build `EAGC(..., process_group=torch.distributed.group.WORLD)` in `setup`.
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from eagc_ops import EAGC, Subspace

INPUT, DIM, CLASSES, KNOWN = 32, 16, 10, 5


class Discovery(lightning.LightningModule):
    """Encoder and head; the reference model and the subspace are fitted before training."""

    def __init__(self, reference, labelled_images):
        super().__init__()
        self.encoder, self.head = nn.Linear(INPUT, DIM), nn.Linear(DIM, CLASSES)
        self.reference = reference.requires_grad_(False)
        self.eagc = EAGC(Subspace.conceptor(reference(labelled_images)))  # saved and moved with the module
        self.losses = []

    def training_step(self, batch, _):
        images, label, mask = batch
        z, token = self.eagc(self.encoder(images), self.reference(images), mask, return_token=True)
        logits = self.head(z)
        mean = logits.softmax(1).mean(0)
        loss = F.cross_entropy(logits[mask], label[mask]) + (mean * mean.log()).sum()
        self.losses.append(loss.item())
        return loss + token

    def configure_optimizers(self):
        return torch.optim.SGD([*self.encoder.parameters(), *self.head.parameters()], lr=0.2)


def main():
    lightning.seed_everything(0, verbose=False)
    label = torch.arange(1000) % CLASSES
    images = 2 * torch.randn(CLASSES, INPUT)[label] + torch.randn(1000, INPUT)
    mask = (label < KNOWN) & (torch.rand(1000) < 0.5)  # True = labelled
    module = Discovery(nn.Linear(INPUT, DIM), images[mask])
    before = module.reference.weight.clone()
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(images, label, mask), batch_size=50, shuffle=True))
    print(f"loss: {sum(module.losses[:5]) / 5:.3f} -> {sum(module.losses[-5:]) / 5:.3f}")
    print(f"the reference model is unchanged: {torch.equal(before, module.reference.weight)}")
    print(f"the subspace is in the state dict: {'eagc.matrix' in module.state_dict()}")


if __name__ == "__main__":
    main()
