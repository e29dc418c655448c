"""What the studies ask, and how it is decided, each written down before its runs."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HELPS", "KEEPS", "Question"]


class Question(NamedTuple):
    """A question, and what decides it."""

    title: str
    score: str  # the outcome, one of `scores.SCORES`
    text: tuple[str, ...]


_DIFFERENCE = (
    "The difference to the baseline is taken seed by seed: both runs start from the same reference model and "
    "see the same draws."
)
_TEST = (
    "**Test.** A two-sided sign-flip permutation test of the mean difference over the seeds, for every "
    "comparison with at least 6 seeds (with fewer it cannot reach 0.05). The p-values are corrected by "
    "Holm's method for the number of planned comparisons that are tested. The interval is a 95 % percentile "
    "bootstrap of the mean."
)
_FLOOR = (
    "**Noise floor.** Null runs have the operator with both strengths 1e-4, which changes little but "
    "roundings. The floor is the largest |null - baseline| over the seeds."
)
_DECISION = (
    "**Decision.** A gain is shown if the corrected p-value is below 0.05 and the mean difference is above "
    "the floor. A loss is shown likewise. Otherwise nothing is shown."
)
_DROPPED = (
    "**Nothing is dropped.** All planned runs are listed, also those that failed or are not finished. "
    "A comparison is made only when all runs of its regime, recipe and method are finished. The number of "
    "seeds and of epochs is fixed when the study begins."
)
HELPS = Question(
    "When does EAGC help?",
    "all",
    (
        "**Question.** For how many known classes does EAGC raise the accuracy of SimGCD, against the same "
        "run without the operator? Does an energy of whitened features change that? And what of the other "
        "methods?",
        "**Outcome.** All, the accuracy on all unlabelled images, in percent, at the last epoch. The best "
        f"epoch is chosen with the truth and decides nothing. {_DIFFERENCE}",
        "**Comparisons.** With the baseline: EAGC in every regime, recipe and method, and EAGC with the "
        "whitened energy wherever SimGCD is trained.",
        _TEST,
        _FLOOR,
        _DECISION,
        "**Beside it**, without a decision: AGA alone and EEP alone, Old and New, GDC, SOC, drift of the "
        "labelled features, the shares of the gradient that EEP and AGA change, and the AUC of the probe.",
        _DROPPED,
    ),
)
KEEPS = Question(
    "Does EAGC keep the known classes?",
    "old",
    (
        "**Question.** In the study of when EAGC helps, SimGCD with 5 and with 10 known classes ended with a "
        "higher Old if it had EAGC: in every seed, by 8.4 and 13.9 points with 5 and by 3.4 and 5.4 with 10 "
        "(recipes `paper` and `release`). Old was not the outcome of that study, so this decided nothing. "
        "Does it come out again, with other characters and other seeds?",
        "**Outcome.** Old, the accuracy on the unlabelled images of known classes, in percent, at the last "
        f"epoch. {_DIFFERENCE}",
        "**Runs.** The characters 61 to 120 of the list of glyphs: no run of that study with 5, 10 or 20 "
        "known classes has seen one. Seeds 10 to 19 instead of 0 to 9. All settings are those of that study.",
        "**Comparisons.** With the baseline: EAGC, for 5 and 10 known classes, in both recipes.",
        _TEST,
        _FLOOR,
        _DECISION,
        "**Beside it**, without a decision: All and New, the fall of Old, GDC, SOC, drift of the labelled "
        "features, the shares of the gradient that EEP and AGA change, and energies.",
        _DROPPED,
    ),
)
