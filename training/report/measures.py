"""The numbers of a run, their titles and explanations, and mean ± std over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from eagc_ops.training.analysis.diagnosis import MEASURES
from eagc_ops.training.engine.run_folder import EPOCHS, SCORES
from eagc_ops.training.report.runs import RunGroup, RunRecord

BEST, BEST_START = EPOCHS["best"], EPOCHS["best_start"]
START_MEASURE = (
    "The released code of SelEx + EAGC reports the accuracy at the start of an epoch: of the clusters with "
    "which the epoch trains, from one augmented view and one restart of k-means, at the best of all epochs, "
    "chosen with the true labels (it scores its 200th epoch by a plain k-means instead). All other "
    "accuracies of SelEx on this page are those of a new k-means at the end of an epoch, from test views, "
    "with ten restarts unless set otherwise."
)


def measures(run: RunRecord) -> dict[str, float]:
    """The numbers of a run, NaN where it has no value, as the accuracies of a run without true labels.

    `all`, `old`, `new`: accuracies of the last epoch so far, in percent; `best_all`, ...: of the best epoch.
    `old_fall`: the highest `old` of all epochs minus the last, what the run forgets of known classes.
    It is biased upwards: a maximum over noisy epochs minus one of them. `own_name`, `known_name`, `taken`:
    what `naming` counts at the last epoch, shares in percent; `clusters`: classes that are predicted.
    `start_all`, ...: of the clusters at the start of an epoch, at their best, if the run scores them.
    `seconds`: median over whole epochs, without the time for GDC and SOC. The measures of gradient
    entanglement (`gdc_clean`, ...): means over the steps at which they were measured.
    """
    epochs, diagnoses = run.lines["epoch"], run.lines["diagnosis"]
    best = max(epochs, key=lambda line: number(line.get("all"), missing=-1.0))
    values = {name: number(epochs[-1].get(name), 100) for name in SCORES}
    values |= {f"best_{name}": number(best.get(name), 100) for name in SCORES}
    values["old_fall"] = max(number(line.get("old"), 100, missing=-1.0) for line in epochs) - values["old"]
    values["own_name"], values["known_name"] = (
        number(epochs[-1].get(f"name_{share}"), 100) for share in ("own", "known")
    )
    values["taken"] = number(epochs[-1].get("name_taken"))
    values["clusters"] = number(epochs[-1].get("classes_predicted"))
    start = max(epochs, key=lambda line: line.get("start_all", -1))
    values |= {f"start_{name}": number(start.get(f"start_{name}"), 100) for name in SCORES}
    diagnosing: dict[int, float] = {}
    for line in diagnoses:
        diagnosing[line["epoch"]] = diagnosing.get(line["epoch"], 0.0) + line["seconds"]
    # A resumed run may have done only a part of an epoch: its seconds do not count.
    whole = [line for line in epochs if line["steps"] == run.facts.steps_per_epoch]
    seconds = [line["seconds"] - diagnosing.get(line["epoch"], 0.0) for line in whole]
    values["seconds"] = statistics.median(seconds) if seconds else math.nan
    for name in MEASURES:
        measured = [line[name] for line in diagnoses if line.get(name) is not None]
        values[name] = statistics.fmean(measured) if measured else math.nan
    return values


def measured(groups: Sequence[RunGroup]) -> list[str]:
    """The measures of gradient entanglement for which a run has a value."""
    lines = _diagnoses(groups)
    return [name for name in MEASURES if any(line.get(name) is not None for line in lines)]


def has_scores(run: RunRecord) -> bool:
    """Whether the run has accuracies; one on images without true labels has none."""
    return any(line.get("all") is not None for line in run.lines["epoch"])


def scores_starts(groups: Sequence[RunGroup]) -> bool:
    """Whether a run scores the clusters at the start of every epoch."""
    return any("start_all" in run.lines["epoch"][0] for group in groups for run in group.runs)


def explanations(groups: Sequence[RunGroup]) -> list[str]:
    """Sentences about the measures of gradient entanglement that the groups have."""
    k = " or ".join(str(k) for k in sorted({line["k"] for line in _diagnoses(groups)}))
    texts = {
        "gdc": (
            "GDC is 1 minus the cosine between the supervised gradient and the whole gradient of the last "
            "block (or of all trained parameters, if the run asks for it), on training batches.",
            "GDC, clean: the supervised gradient without EAGC, against the gradient that is applied.",
            "GDC, release: the operator acts in both gradients, as in the released code.",
        ),
        "soc": (
            f"SOC: share of the energy of novel-class features in the {k} leading directions of labelled "
            "features, under the test transform; novel classes by their true labels.",
            "SOC, release: unit-norm rows, centred on the labelled mean. SOC, paper: raw features.",
        ),
        "rho_grad": (
            "rho_grad: share of the rows of known classes, labelled ones included, in the sum of |dL/dz| "
            "over a batch, where L is the method's whole loss before the operator acts. The grey line is "
            "their share of the rows, which rho_grad would equal if |dL/dz| were the same for all rows.",
        ),
        "rho_in": (
            "rho_in: share of the energy of novel-class features inside the conceptor of the current "
            "labelled features (not of the reference model's), with the run's aperture.",
        ),
        "drift": (
            "Drift: how far the labelled features are from the reference model's, under the test transform: "
            "the sum of |z - z_ref|, as a share of that of |z_ref|.",
        ),
        "eep": (
            "Shares of EEP and AGA: the sum of |g' - g| over unlabelled rows, and over labelled ones, as a "
            "share of that of |g|; g is dL/dz before the operator and g' after it.",
        ),
        "cos": (
            "cos: cosine between the supervised gradient and the gradient of the whole loss on some rows of "
            "the batch: the labelled ones, these and the unlabelled ones of known classes, the labelled "
            "ones and the unlabelled ones of novel classes, or all. The operator takes no part.",
        ),
    }
    names = measured(groups)
    shown = [texts[kind] for kind in texts if any(name.startswith(kind) for name in names)]
    return [sentence for sentences in shown for sentence in sentences]


def mean_std(values: Iterable[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1; NaN for one value) of the values that are not NaN."""
    numbers = [value for value in values if not math.isnan(value)]
    mean = statistics.fmean(numbers) if numbers else math.nan
    return mean, statistics.stdev(numbers) if len(numbers) > 1 else math.nan


def plus_minus(values: Iterable[float], digits: int = 1, sign: str = "") -> str:
    """`mean ± std` as text; one value has no std, and a dash stands for none.

    `sign="+"` also marks positive means.

    >>> plus_minus([1.0, 2.0, 3.0]), plus_minus([0.5], 2), plus_minus([])
    ('2.0 ± 1.0', '0.50', '-')
    """
    mean, std = mean_std(values)
    if math.isnan(mean):
        return "-"
    return f"{mean:{sign}.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def signed(value: float, digits: int = 1) -> str:
    """A difference as text, with its sign unless it rounds to 0.

    >>> signed(1.25), signed(-0.04), signed(-0.05, 2)
    ('+1.2', '0.0', '-0.05')
    """
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text


def number(value: float | None, scale: float = 1.0, missing: float = math.nan) -> float:
    """A scaled value of a log line; NaN, or `missing`, for None."""
    return missing if value is None else scale * value


def _diagnoses(groups: Sequence[RunGroup]) -> list[dict]:
    return [line for group in groups for run in group.runs for line in run.lines["diagnosis"]]
