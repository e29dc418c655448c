"""EAGC in a script with Hugging Face Accelerate.

    python examples/accelerate_script.py
    ACCELERATE_USE_CPU=1 torchrun --standalone --nproc-per-node 2 examples/accelerate_script.py  # no GPU

`accelerator.backward` divides the loss by the accumulation steps and scales it under fp16, so the scale
token is added to the loss. With several processes, `process_group` makes the anchor one mean over all of
them.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn  # DDP imports it later, and then its default arguments would keep the group
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from eagc_ops import EAGC, Subspace

INPUT, DIM, CLASSES, KNOWN = 32, 16, 10, 5


class Student(nn.Module):
    """Encoder, EAGC and head."""

    def __init__(self, eagc):
        super().__init__()
        self.encoder, self.eagc, self.head = nn.Linear(INPUT, DIM), eagc, nn.Linear(DIM, CLASSES)

    def forward(self, images, z_ref, mask):
        z, token = self.eagc(self.encoder(images), z_ref, mask, return_token=True)
        return self.head(z), token


def train(accelerator):
    torch.manual_seed(0)
    label = torch.arange(1000) % CLASSES
    images = 2 * torch.randn(CLASSES, INPUT)[label] + torch.randn(1000, INPUT)
    mask = (label < KNOWN) & (torch.rand(1000) < 0.5)  # True = labelled

    reference = nn.Linear(INPUT, DIM).requires_grad_(False)
    subspace = Subspace.conceptor(reference(images[mask]))
    group = dist.group.WORLD if accelerator.num_processes > 1 else None
    student = Student(EAGC(subspace, process_group=group))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.2)
    batches = DataLoader(TensorDataset(images, label, mask), batch_size=50, shuffle=True)
    student, optimizer, batches = accelerator.prepare(student, optimizer, batches)
    reference.to(accelerator.device)

    losses = []
    for _ in range(4):
        for images, label, mask in batches:
            with accelerator.accumulate(student):
                logits, token = student(images, reference(images), mask)
                mean = logits.softmax(1).mean(0)
                loss = F.cross_entropy(logits[mask], label[mask]) + (mean * mean.log()).sum()
                accelerator.backward(loss + token)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
    accelerator.print(f"processes: {accelerator.num_processes}")
    accelerator.print(f"loss: {sum(losses[:5]) / 5:.3f} -> {sum(losses[-5:]) / 5:.3f}")


if __name__ == "__main__":
    accelerator = Accelerator(gradient_accumulation_steps=2)
    train(accelerator)  # what holds the group, the student, is gone when it returns
    accelerator.free_memory()  # the accelerator holds it too
    accelerator.end_training()  # so this ends its threads; torch 2.11 may abort if they outlive Python
