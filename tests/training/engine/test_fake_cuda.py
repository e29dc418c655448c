"""A training step on tensors that claim to be on a GPU: nothing stays behind on the CPU, and the host waits
for nothing.

torch's fake tensors know shapes, dtypes and devices, and have no values: reading one raises an error, and so
does an operation on two devices. A fake backward on "cuda" asks for a driver, so that of the whole step runs
on the meta device.
"""

import contextlib
import copy

import pytest
import torch
from no_waiting import NoWaiting
from small_runs import small_config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from eagc_ops.training.data.rows import Rows, rows_of
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.models.optimization import sgd

METHODS = ("small", "small_legogcd", "small_sptnet", "small_selex")


@pytest.fixture(scope="module")
def step(data, tmp_path_factory):
    """method -> (student, its rows), prepared on the CPU; the student has EAGC and a reference model."""
    made = {}

    def make(method):
        if method not in made:
            settings = {"small_selex": {"embedding_dim": 32}, "small_sptnet": {"pad_width": 2}}.get(
                method, {}
            )
            if method == "small_sptnet":
                settings |= {"precision": "no", "phase_batches": 2, "init": "any", "sptnet_eagc": "on"}
            config = small_config(data, method, reference_epochs=1, energy_momentum=0.9, **settings)
            experiment = Experiment(config)
            experiment.prepare(tmp_path_factory.mktemp(method))
            experiment.student.eval()
            with torch.no_grad():
                experiment.student.method.start_epoch(0, experiment.features)
            position = next(p for p in range(9) if experiment.student.method.coordinated(p))
            batch = next(iter(experiment.batches.train.epoch(0)))
            made[method] = experiment.student.train(), rows_of(batch, "cpu", position=position)
        return made[method]

    return make


def moved(student, rows, to):
    """Both where `to` puts every tensor."""
    for module in student.modules():
        for kind in (module._parameters, module._buffers):
            for name, x in kind.items():
                if x is not None:
                    placed = to(x).detach()
                    kind[name] = (
                        torch.nn.Parameter(placed, x.requires_grad) if kind is module._parameters else placed
                    )
    if student.eagc is not None:
        student.eagc._halve()
    return student, Rows(*(_each(to, part) for part in rows))


def _each(to, part):
    if isinstance(part, torch.Tensor):
        return to(part)
    return [to(x) for x in part] if isinstance(part, list) else part


@pytest.fixture(autouse=True)
def an_a100(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))


@contextlib.contextmanager
def on_a_fake_gpu(step, method):
    student, rows = copy.deepcopy(step(method))
    with FakeTensorMode() as mode:
        yield moved(student, rows, lambda x: mode.from_tensor(x).to("cuda"))


@contextlib.contextmanager
def switched_on(autocast):
    """torch.autocast("cuda") does nothing where there is no driver."""
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", autocast)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("method", METHODS)
def test_a_step_stays_on_the_gpu_and_waits_for_nothing(step, monkeypatch, method, autocast):
    with on_a_fake_gpu(step, method) as (student, rows):
        assert student.eagc is not None
        for position in {0, rows.position}:  # of SPTNet, both phases
            with switched_on(autocast):
                assert student.eagc.execution.autocast == autocast
                one = torch.ones(2, 2, device="cuda")
                assert (one @ one).dtype == (torch.bfloat16 if autocast else torch.float32)
                loss, token = student(rows._replace(position=position))
            total = loss.supervised + loss.unsupervised
            assert (token is not None) == student.method.coordinated(position)
            assert {x.device.type for x in tree_leaves((total, token, loss.terms)) if x is not None} == {
                "cuda"
            }
            assert total.requires_grad and total.dtype == torch.float32

        updated = []
        monkeypatch.setattr(torch, "_fused_sgd_", lambda params, *rest, **options: updated.extend(params))
        for optimizer in student.method.optimizers(student.encoder):
            trained = [p for group in optimizer.param_groups for p in group["params"]]
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            assert {id(p) for p in updated[-len(trained) :]} == {id(p) for p in trained}


def test_reading_a_value_or_mixing_devices_would_be_seen(step):
    with on_a_fake_gpu(step, "small") as (student, rows):
        heads = student.method.forward
        for fault in (lambda z: heads(z * z.sum().item()), lambda z: heads(z + torch.ones(len(z), 1))):
            student.method.forward = fault
            with pytest.raises(Exception, match=r"_local_scalar_dense|at least two devices"):
                student(rows)


@pytest.mark.parametrize("method", METHODS)
def test_the_backward_of_a_step_waits_for_nothing(step, method):
    student, rows = step(method)
    student, rows = moved(copy.deepcopy(student), rows, lambda x: x.to("meta"))
    with NoWaiting():
        loss, token = student(rows)
        (loss.supervised + loss.unsupervised + token).backward()
    (trained, *_) = student.method.optimizers(student.encoder)[-1:]
    for group in trained.param_groups:
        assert {p.grad.device.type for p in group["params"] if p.grad is not None} == {"meta"}


@pytest.mark.parametrize(("device", "fused"), [("cuda", True), ("cpu", None)])
def test_one_kernel_updates_all_tensors_on_a_gpu_alone(device, fused):
    with FakeTensorMode():
        group = {"params": [torch.zeros(2, device=device, requires_grad=True)], "lr": 0.1}
        assert sgd([group], momentum=0.9).defaults["fused"] is fused
