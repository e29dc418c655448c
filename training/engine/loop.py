"""The training loop: the epochs of GCD training with EAGC.

Everything random is keyed by (seed, epoch, position), and learning rates are functions of epoch and position.
So a run that is killed and resumed, or that uses more data workers, gives the same bits on a CPU (on a GPU
with `deterministic`). That is promised of one process: several sum gradients in the order of their library.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from eagc_ops.app import interrupts
from eagc_ops.app.console import progress_bar
from eagc_ops.training.data import Batch, draw_key
from eagc_ops.training.data.rows import Rows, rows_of
from eagc_ops.training.engine.checkpoint import save_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.metrics import Meter, distribution
from eagc_ops.training.engine.ranks import agreement
from eagc_ops.training.engine.run_folder import SCORES, RunFolder, finite, scores_text

__all__ = ["Callback", "Evaluation", "Loop", "RunWarning"]

TAU_NEAR_ZERO, ALMOST_EVERY_ROW = 0.01, 0.95
# Attributes that a checkpoint stores
_PROGRESS = ("epoch", "position", "last", "best", "faults", "tau_near_zero")
# Prefixes in checkpoints
_OPTIMIZER, _METER = "optimizer.", "meter."


class RunWarning(UserWarning):
    """A run trains, but its numbers are of little use."""


class Evaluation(NamedTuple):
    """An evaluation of the student's predictions on the unlabelled set."""

    # Accuracies in [0, 1], NaN where there is no image; "all" decides the best epoch. None: there is no truth
    scores: Mapping[str, float] | None
    classes_predicted: int
    # The same of the clusters with which the epoch trained; None: the method does not report them
    start_scores: Mapping[str, float] | None = None
    # Further numbers for the log, by name
    also: Mapping[str, float] = {}


class Callback:
    """Called at every optimizer step of a run; `loop.folder.log` writes a line for it."""

    def before_update(self, loop: Loop, rows: Rows) -> None:
        """After backward, before the step: `.grad` holds the gradient that is applied."""

    def after_update(self, loop: Loop, rows: Rows) -> None:
        """After the step."""


class Loop:
    """The epochs of one run: optimizers, steps, log lines and checkpoints.

    Args:
        experiment: the data and the student.
        folder: where the run is written. A checkpoint in it is continued.
        evaluate: evaluates the experiment's student at the end of an epoch.
        callbacks: called at every step, in this order.
        begin: called once with the prepared experiment, before the first step of the run.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        evaluate: Callable[[Experiment], Evaluation],
        callbacks: Sequence[Callback] = (),
        begin: Callable[[Experiment], None] | None = None,
    ) -> None:
        self.experiment, self.folder, self.evaluate, self.callbacks = experiment, folder, evaluate, callbacks
        self.begin = begin
        self.config, self.student = experiment.config, experiment.student
        self.optimizers: list[torch.optim.Optimizer] = []  # made by `fit`
        self.epoch = self.position = 0
        self.last: dict[str, Any] | None = None
        self.best: dict[str, Any] | None = None
        self.best_start: dict[str, Any] | None = None  # of the clusters at the start of an epoch
        self.faults: list[str] = []
        self.tau_near_zero: list[float] = []  # share of unlabelled rows, one entry per log line of the epoch
        self.meter = Meter()  # of the steps since the last log line
        self._agree = agreement(experiment.accelerator)

    @property
    def steps_per_epoch(self) -> int:
        return self.experiment.facts.steps_per_epoch

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self.epoch * self.steps_per_epoch + self.position

    def fit(self) -> dict[str, Any]:
        """Train to the last epoch, from the folder's checkpoint if it has one. Returns result.json."""
        self._start()
        config, folder = self.config, self.folder
        total = config.epochs * self.steps_per_epoch
        with (
            closing(folder),
            progress_bar(
                total=total, initial=self.step, unit="step", mininterval=1, shown=self.experiment.main
            ) as bar,
        ):
            while self.epoch < config.epochs:
                bar.set_description(f"epoch {self.epoch + 1}/{config.epochs}")
                timing = self._train_epoch(bar)
                self._finish_epoch(bar, timing)
        result = {
            "headline": config.headline,
            "last": _in_order(self.last),
            "best": _in_order(self.best),
            "warnings": self.faults,
            "reference_cross_entropy": self.experiment.reference_cross_entropy,
            **self._reported_start(),
        }
        folder.finish(result)
        return result

    def _start(self) -> None:
        """Prepare the experiment, make the optimizers, and restore the checkpoint if there is one."""
        experiment, folder = self.experiment, self.folder
        checkpoint = experiment.read_checkpoint(folder.last) if folder.last.exists() else None
        start = experiment.starting_point if checkpoint is None else None
        experiment.prepare(folder.references)
        self.optimizers = self.student.method.optimizers(self.student.encoder)
        if checkpoint is not None:
            self._restore(*checkpoint)
        elif start is not None:
            self.student.load({**self.student.state(), **start.weights})
        if checkpoint is None and self.begin is not None:
            self.begin(experiment)
        if self.config.compile:
            self.student.encoder.compile()
        self.model, *self.optimizers = experiment.accelerator.prepare(self.student, *self.optimizers)
        board = self.config.tensorboard_every
        folder.start_logs(
            self.epoch,
            self.position,
            self.step + 1,
            on_the_board=(lambda epoch: self._is_turn(epoch, board)) if board else None,
        )

    # Steps --------------------------------------------------------------------------------------------------

    def _train_epoch(self, bar: tqdm) -> dict[str, float]:
        """The batches of one epoch, from `self.position` on. Returns their number and their seconds."""
        config, experiment = self.config, self.experiment
        steps, first, started = self.steps_per_epoch, self.position, time.perf_counter()
        if first == 0:
            self.meter = Meter()
            self.tau_near_zero = []
            self.student.eval()
            with torch.no_grad(), experiment.autocast():
                self.student.method.start_epoch(self.epoch, experiment.features)
        self.student.train()
        with interrupts.deferred(self._agree) as interrupted:  # a step has no state to resume
            for batch in experiment.batches.train.epoch(self.epoch, first):  # (x, y, mask) from D_L and D_U
                rank = experiment.accelerator.process_index
                torch.manual_seed(draw_key(config.seed, self.epoch, self.position, rank, -1))
                done, every = self.position + 1, config.checkpoint_every
                save = every and done % every == 0 and done < steps
                log = save or done % config.log_every == 0 or done == steps
                if self.student.eagc is not None:
                    self.student.eagc.record = bool(log)  # recording costs a product with S
                self._update(batch)
                self.position = done
                bar.update()
                if log:
                    self._log_step(bar)
                stop = interrupted()
                if save or stop:
                    self._save_checkpoint()
                if stop:
                    experiment.accelerator.wait_for_everyone()  # until the main process has saved
                    break
        return {"steps": steps - first, "seconds": time.perf_counter() - started}

    def _update(self, batch: Batch) -> None:
        """One optimizer step of E and phi."""
        accelerator, optimizer = self.experiment.accelerator, self._choose_optimizer()
        for rows in self._parts(batch):
            with accelerator.accumulate(self.model):
                loss, token = self.model(rows)  # L_GCD; EAGC is in its graph
                total = loss.supervised + loss.unsupervised
                # The token carries the scale of the loss to the anchor term.
                accelerator.backward(total if token is None else total + token)
                if accelerator.sync_gradients:
                    for callback in self.callbacks:
                        callback.before_update(self, rows)
                optimizer.step()
            self.meter.add(
                {
                    "loss": total,
                    "supervised": loss.supervised,
                    "unsupervised": loss.unsupervised,
                    **loss.terms,
                }
            )
        self.student.zero_grad()  # all gradients: leftovers would enter a step of the other optimizers
        for callback in self.callbacks:
            callback.after_update(self, rows)

    def _choose_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of this step, with its learning rates. Parameters of the others need no gradient."""
        method = self.student.method
        optimizer = self.optimizers[method.phase(self.position)]
        for other in self.optimizers if method.alternating else ():
            for group in other.param_groups:
                for parameter in group["params"]:
                    parameter.requires_grad_(other is optimizer)
        for group in optimizer.param_groups:
            group["lr"] = method.learning_rate(group["initial_lr"], self.epoch, self.position)
        return optimizer

    def _parts(self, batch: Batch) -> Iterator[Rows]:
        """The batch on the device, in `accumulation` parts."""
        size = len(batch.label) // self.config.accumulation
        for start in range(0, len(batch.label), size):
            yield rows_of(
                batch.select(slice(start, start + size)),
                self.experiment.device,
                epoch=self.epoch,
                position=self.position,
            )

    def _log_step(self, bar: tqdm) -> None:
        """Write a log line. Values of a step leave the device only here."""
        means = self.meter.read()
        if self._agree(not math.isfinite(means["loss"])):  # all processes end, or none
            raise FloatingPointError(
                f"the loss is {means['loss']} in epoch {self.epoch}, up to step {self.position}: {means}; "
                "try lower learning rates"
            )
        line = {"epoch": self.epoch, "position": self.position - 1, **means}
        stepped = self.optimizers[self.student.method.phase(self.position - 1)]
        groups = [
            (optimizer is stepped, group["lr"])
            for optimizer in self.optimizers
            for group in optimizer.param_groups
        ]
        line |= {f"lr_{i}": lr for i, (used, lr) in enumerate(groups) if used}
        if self.student.eagc is not None and self.student.method.coordinated(self.position - 1):
            # Of the unlabelled rows; the others are NaN.
            records = (self.student.eagc.last_energy, self.student.eagc.last_tau)
            energy, tau = (values[~values.isnan()].cpu() for values in records if values is not None)
            line |= {**distribution("energy", energy), **distribution("tau", tau)}
            self.tau_near_zero += [(tau < TAU_NEAR_ZERO).float().mean().item()] if len(tau) else []
        self.folder.log("step", self.step, line)
        bar.set_postfix(loss=f"{means['loss']:.3f}")

    # After an epoch -----------------------------------------------------------------------------------------

    def _finish_epoch(self, bar: tqdm, timing: dict[str, float]) -> None:
        """Evaluate and save the checkpoint, if it is their turn."""
        epoch, config = self.epoch, self.config
        if not self.experiment.data.truth:
            predicted = self._predict(timing)
        elif self._is_turn(epoch, config.evaluate_every):
            predicted = self._evaluate(bar, timing)
        else:
            predicted = None
        self._find_faults(predicted)
        self.epoch, self.position = epoch + 1, 0
        if self._is_turn(epoch, config.checkpoint_epochs):
            self._save_checkpoint()

    def _is_turn(self, epoch: int, every: int) -> bool:
        """Whether what happens every so many epochs, and in the last one, happens in this one."""
        return epoch == self.config.epochs - 1 or (epoch + 1) % every == 0

    def _predict(self, timing: dict[str, float]) -> int | None:
        """Nobody knows the truth, so no epoch is better than another, and only the last one is looked at."""
        self.last = {"epoch": self.epoch}
        at_end = self.epoch == self.config.epochs - 1
        predicted = self.evaluate(self.experiment).classes_predicted if at_end else None
        found = {} if predicted is None else {"classes_predicted": predicted}
        self.folder.log("epoch", self.step, {**self.last, **found, **timing})
        return predicted

    def _evaluate(self, bar: tqdm, timing: dict[str, float]) -> int:
        """Evaluate, and keep the best weights. Returns the number of classes that are predicted."""
        scores, predicted, start, also = self.evaluate(self.experiment)
        assert scores is not None  # the truth is known, or `_predict` would have been called
        bar.set_postfix_str(scores_text(scores, 1))
        self.last = {"epoch": self.epoch, **finite(dict(scores))}
        line = {**self.last, "classes_predicted": predicted, **finite(dict(also)), **timing}
        if start is not None:
            line |= {f"start_{name}": score for name, score in start.items()}
            if self.best_start is None or start["all"] > self.best_start["all"]:
                self.best_start = {"epoch": self.epoch, **finite(dict(start))}
        self.folder.log("epoch", self.step, line)
        if self.best is None or self.last["all"] > self.best["all"]:
            self.best = self.last
            if self.experiment.main:
                state = {"identity": self.experiment.identity(), "last": self.last}
                save_checkpoint(self.folder.best, self.student.state(), state)
        return predicted

    def _reported_start(self) -> dict[str, Any]:
        """Entry of result.json and of checkpoints; nothing in runs that do not report it."""
        return {} if self.best_start is None else {"best_start": _in_order(self.best_start)}

    def _find_faults(self, predicted: int | None) -> None:
        """Warn about a run that is of little use.

        The number of classes is checked at the end; tau also after the first epoch, in time to stop the run.
        """
        first, end = self.epoch == 0, self.epoch == self.config.epochs - 1
        classes = self.experiment.facts.classes
        self.faults = []
        if end and predicted is not None and predicted < classes:
            limits = ", which limits New" if self.experiment.data.truth else ""
            self.faults.append(
                f"the run predicts {predicted} of {classes} classes: the others are empty{limits}"
            )
        share = sum(self.tau_near_zero) / max(len(self.tau_near_zero), 1)
        if (first or end) and share > ALMOST_EVERY_ROW:
            reason = (
                "S is close to the identity for features of this scale; try a smaller aperture (now "
                f"{self.config.aperture})"
                if self.config.energy == "conceptor"
                else "by their whitened energy all of them look known"
            )
            self.faults.append(
                f"tau is below {TAU_NEAR_ZERO} on {share:.1%} of the unlabelled rows, "
                f"so EEP does next to nothing: {reason}"
            )
        for message in self.faults if self.experiment.main else ():
            warnings.warn(message, RunWarning, stacklevel=2)

    # Checkpoints --------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """Save everything that resuming needs. Random draws and learning rates have no state."""
        if not self.experiment.main:
            return
        tensors = self.student.state()
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.student.named_parameters()}
        for i, optimizer in enumerate(self.optimizers):
            for parameter, values in optimizer.state.items():
                tensors |= {
                    f"{_OPTIMIZER}{i}.{names[parameter]}.{key}": value
                    for key, value in values.items()
                    if value is not None
                }
        tensors |= {f"{_METER}{name}": value for name, value in self.meter.state().items()}
        scaler = self.experiment.accelerator.scaler
        state = {
            "identity": self.experiment.identity(),
            "scaler": scaler.state_dict() if scaler else None,
            **{name: getattr(self, name) for name in _PROGRESS},
            **self._reported_start(),
        }
        save_checkpoint(self.folder.last, tensors, state)

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        self.student.load(tensors)
        parameters = dict(self.student.named_parameters())
        for name in (name for name in tensors if name.startswith(_OPTIMIZER)):
            i, path = name.removeprefix(_OPTIMIZER).split(".", 1)
            parameter, key = path.rsplit(".", 1)
            value = tensors[name].to(self.experiment.device)
            self.optimizers[int(i)].state[parameters[parameter]][key] = value
        device = self.experiment.device
        self.meter.load(
            {
                name.removeprefix(_METER): value.to(device)
                for name, value in tensors.items()
                if name.startswith(_METER)
            }
        )
        if self.experiment.accelerator.scaler:
            self.experiment.accelerator.scaler.load_state_dict(state["scaler"])
        for name in _PROGRESS:
            setattr(self, name, state[name])
        self.best_start = state.get("best_start")


def _in_order(scores: dict[str, Any] | None) -> dict[str, Any] | None:
    """The epoch, then the scores: a checkpoint sorts its keys."""
    return None if scores is None else {name: scores[name] for name in ("epoch", *SCORES) if name in scores}
