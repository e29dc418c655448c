"""EAGC in a model for the Trainer of Hugging Face. Every line that EAGC adds is marked `# EAGC`.

    pip install transformers accelerate
    python examples/hugging_face_trainer.py

The Trainer divides the loss for accumulation and scales it for fp16, so the model adds the scale token. On
several devices, build `EAGC(..., process_group=torch.distributed.group.WORLD)`.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

from eagc_ops import EAGC, Subspace  # EAGC

INPUT, DIM, CLASSES, KNOWN = 32, 16, 10, 5


class Discovery(nn.Module):
    """Encoder and head. The reference model and the subspace are saved and moved with them."""

    def __init__(self, reference, labelled_images):
        super().__init__()
        self.encoder, self.head = nn.Linear(INPUT, DIM), nn.Linear(DIM, CLASSES)
        self.reference = reference.requires_grad_(False)  # EAGC
        self.eagc = EAGC(Subspace.conceptor(reference(labelled_images)))  # EAGC

    def forward(self, images, labels, mask):
        z = self.encoder(images)
        z, token = self.eagc(z, self.reference(images), mask, return_token=True)  # EAGC
        logits = self.head(z)
        mean = logits.softmax(1).mean(0)
        loss = F.cross_entropy(logits[mask], labels[mask]) + (mean * mean.log()).sum()
        loss = loss + token  # EAGC
        return {"loss": loss, "logits": logits}


def main():
    torch.manual_seed(0)
    label = torch.arange(1000) % CLASSES
    images = 2 * torch.randn(CLASSES, INPUT)[label] + torch.randn(1000, INPUT)
    mask = (label < KNOWN) & (torch.rand(1000) < 0.5)  # True = labelled
    model = Discovery(nn.Linear(INPUT, DIM), images[mask])
    before = model.reference.weight.clone()
    rows = [{"images": x, "labels": y, "mask": m} for x, y, m in zip(images, label, mask)]
    arguments = TrainingArguments(
        "runs/hugging-face",
        num_train_epochs=4,
        per_device_train_batch_size=50,
        gradient_accumulation_steps=2,
        learning_rate=0.02,
        remove_unused_columns=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="epoch",
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss: {float(losses[0]):.3f} -> {float(losses[-1]):.3f}")
    print(f"the reference model is unchanged: {torch.equal(before, model.reference.weight)}")
    print(f"the subspace is in the state dict: {'eagc.matrix' in model.state_dict()}")


if __name__ == "__main__":
    main()
