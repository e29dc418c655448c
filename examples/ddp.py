"""EAGC with DistributedDataParallel.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py

DDP averages gradients over ranks. The anchor is a mean over labelled rows, and ranks may have different
numbers of them: `process_group` makes it one mean over all ranks, so that two processes give the same
gradient as one. The script uses gloo and a CPU; on GPUs choose nccl and move models and batches to the
rank's device.
"""

import copy

import torch
import torch.distributed as dist
import torch.distributed.nn  # DDP imports it later, and then its default arguments would keep the group
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from eagc_ops import EAGC, Subspace

INPUT, DIM, CLASSES, ROWS = 32, 16, 10, 96


class Student(nn.Module):
    """Encoder, EAGC and head in one module, so that DDP sees all parameters."""

    def __init__(self, encoder, head, eagc):
        super().__init__()
        self.encoder, self.eagc, self.head = encoder, eagc, head

    def forward(self, images, z_ref, mask):
        z, token = self.eagc(self.encoder(images), z_ref, mask, return_token=True)
        return self.head(z), token


def step(student, reference, images, label, mask):
    """The loss of this rank's rows, scaled so that DDP's average over ranks is the mean over all rows."""
    logits, token = student(images, reference(images), mask)
    world = dist.get_world_size() if isinstance(student, DistributedDataParallel) else 1
    loss = F.cross_entropy(logits, label, reduction="sum") * world / ROWS
    (loss + token).backward()
    return loss.detach()


def train():
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights and data on every rank
    encoder, reference, head = nn.Linear(INPUT, DIM), nn.Linear(INPUT, DIM), nn.Linear(DIM, CLASSES)
    reference.requires_grad_(False)
    images, label = torch.randn(ROWS, INPUT), torch.randint(CLASSES, (ROWS,))
    mask = torch.arange(ROWS) < ROWS // 3  # rank 0 has most of the labelled rows
    mine = slice(rank * ROWS // world, (rank + 1) * ROWS // world)

    share = reference(images[mask])[rank::world]  # every rank gives its share
    subspace = Subspace.conceptor(share, process_group=dist.group.WORLD)
    eagc = EAGC(subspace, process_group=dist.group.WORLD)
    alone = Student(copy.deepcopy(encoder), copy.deepcopy(head), EAGC(subspace))
    student = DistributedDataParallel(Student(encoder, head, eagc))

    step(student, reference, images[mine], label[mine], mask[mine])
    step(alone, reference, images, label, mask)
    difference = (encoder.weight.grad - alone.encoder.weight.grad).norm() / alone.encoder.weight.grad.norm()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.5)
    losses = torch.empty(20)
    for i in range(len(losses)):
        optimizer.zero_grad()
        losses[i] = step(student, reference, images[mine], label[mine], mask[mine])
        optimizer.step()
    dist.all_reduce(losses, op=dist.ReduceOp.SUM)
    if rank == 0:
        print(f"gradient of {world} processes against one: {difference:.1e}")
        print(f"loss: {losses[0] / world:.3f} -> {losses[-1] / world:.3f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()  # what holds the group, the models, is gone when it returns
    dist.destroy_process_group()  # so this ends its threads; torch 2.11 may abort if they outlive Python
