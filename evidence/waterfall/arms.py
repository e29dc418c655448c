"""The recipes that are compared, and how often each is trained."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = [
    "ARMS",
    "CANDIDATES",
    "CHOOSING",
    "EAGC",
    "NULL",
    "OWN",
    "RATES",
    "REPLICATES",
    "STEPS",
    "WARM",
    "Arm",
]

REPLICATES, CHOOSING = 12, 6  # of the main comparisons; the first ones also choose the recommended recipe


class Arm(NamedTuple):
    """A recipe: a preset, and the settings on top of it. `longer`: it trains the reference's epochs too."""

    name: str
    turn: int  # arms of turn 0 are trained first
    replicates: int
    preset: str
    settings: dict[str, Any]
    longer: bool = False

    @property
    def key(self) -> str:
        return self.name.replace("+ ", "").replace(", ", "-").replace(" ", "-")


OWN, WARM, EAGC, NULL = "own recipe", "warm start", "EAGC", "null"
_HEAD = {"eagc": False}  # of the preset "paper": head rate 1.0, without the operator
_WARM = {"eagc": False, "warm_start": True}
_FULL = {"warm_start": True}


def _arms() -> list[Arm]:
    def at(rate: float, settings: dict[str, Any]) -> dict[str, Any]:
        # The head's rate ends at a thousandth, and the encoder's must not rise.
        return {**settings, "backbone_lr": rate}

    most, some = REPLICATES, CHOOSING
    return [
        Arm(WARM, 0, most, "paper", _WARM),
        Arm(EAGC, 0, most, "paper", _FULL),
        Arm("warm start, rate 0.03", 1, most, "paper", at(0.03, _WARM)),
        Arm("warm start, rate 0.01", 1, most, "paper", at(0.01, _WARM)),
        Arm(OWN, 1, most, "baseline", {}),
        Arm("EAGC, rate 0.03", 2, some, "paper", at(0.03, _FULL)),
        Arm("AGA", 2, some, "paper", {**_FULL, "lambda_p": 0.0}),
        Arm("EEP", 2, some, "paper", {**_FULL, "lambda_a": 0.0}),
        Arm("head rate", 2, some, "paper", _HEAD),
        Arm("AGA, rate 0.03", 2, some, "paper", at(0.03, {**_FULL, "lambda_p": 0.0})),
        Arm("own recipe, rate 0.03", 3, some, "baseline", {"backbone_lr": 0.03}),
        Arm("own recipe, rate 0.01", 3, some, "baseline", {"backbone_lr": 0.01}),
        Arm("own recipe, longer", 3, some, "baseline", {}, longer=True),
        Arm(NULL, 3, some, "paper", {**_FULL, "lambda_a": 1e-4, "lambda_p": 1e-4}),
        Arm("EAGC, MLP head", 3, some, "paper", {**_FULL, "mlp_head_layers": 1}),
        Arm("whitened EAGC", 3, some, "paper", {**_FULL, "energy": "whitened"}),
        Arm("EAGC, rate 0.01", 3, some, "paper", at(0.01, _FULL)),
    ]


ARMS = {arm.name: arm for arm in _arms()}
RATES = (WARM, "warm start, rate 0.03", "warm start, rate 0.01")  # without the operator: 0.1, 0.03, 0.01
# The waterfall: (what is switched, from, to), in both orders of AGA and EEP
STEPS = (
    ("head rate 1.0", OWN, "head rate"),
    ("warm start", "head rate", WARM),
    ("AGA", WARM, "AGA"),
    ("EEP after AGA", "AGA", EAGC),
    ("EEP", WARM, "EEP"),
    ("AGA after EEP", "EEP", EAGC),
    ("MLP head", EAGC, "EAGC, MLP head"),
)
# Among these the recommended recipe is chosen, by All
CANDIDATES = (OWN, *RATES, EAGC, "EAGC, rate 0.03", "AGA", "AGA, rate 0.03")
