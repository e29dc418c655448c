"""What is asked, and how it is decided. Written down before the first run, with `arms`."""

from __future__ import annotations

from eagc_ops.evidence.waterfall.arms import CHOOSING, REPLICATES

__all__ = ["TEXT", "TITLE"]

TITLE = "Where do the points come from?"
TEXT = (
    "**Question.** From SimGCD's own recipe to that of EAGC, how much does each switch add: the head's "
    "rate, the start from the reference model, AGA, EEP? And does a smaller rate of the encoder, or a "
    "longer run, do the same without the operator?",
    "**Replicates.** Every replicate draws its own classes, its known classes among them, and its labelled "
    "images, all by its number, which also is the seed of the run. All recipes of a replicate share these. "
    "So the spread over replicates is that over problems and trainings, not over trainings on one problem.",
    "**Data.** Glyphs: 60 of 200 characters, of which 5, 10 or 20 are known, 30 images of each. Birds: 100 "
    "of the 200 species of CUB-200-2011 (its 5,994 training images), of which 50 are known, not the "
    "published split, which has one draw. The encoder is a DINOv2 ViT-S/14 with registers, tuned a little "
    "by a third party on MRI pictures, at 168 pixels instead of 224, which halves a run; its last block is "
    "trained. DINOv2's own images were chosen around sets such as this one, without labels. 30 epochs "
    "instead of 200, from a trunk cache of two views of every image.",
    "**What preceded.** Three runs on a replicate of glyphs that is not part of the plan, to learn their "
    "time. Glyphs with one draw of classes were studied before. On two draws of birds, at 224 pixels, a "
    "first look gave EAGC minus warm start +1.1 and +2.1 points of All, and rate 0.03 without the operator "
    "+2.9 and +0.6.",
    "**Outcomes.** All at the last epoch, and *own name*: the share of the unlabelled images of known "
    "classes in the cluster that has their class's name, without any matching.",
    "**The main comparison.** EAGC minus *warm start* (the same start and rates, no operator, encoder's "
    f"rate 0.1), All, on 100 classes of birds, {REPLICATES} replicates. If differences have a standard "
    f"deviation of 2 points, {REPLICATES} replicates see 1.8 points with power 0.8; in earlier studies it "
    "was 1.3 to 2.9. (Ten seeds with a correction for 15 comparisons see only 2.5 to 5.8 points.)",
    "**The second comparison.** EAGC minus the best of the three warm starts without it, with the "
    "encoder's rate 0.1, 0.03 or 0.01: the one of the highest mean All on these replicates, which favours "
    f"it over EAGC. {REPLICATES} replicates.",
    f"**The same two questions on glyphs**, with 5, 10 and 20 known of 60 characters, each on {REPLICATES} "
    "replicates.",
    f"**All others** have {CHOOSING} replicates. Where fewer are trained than planned, the table says how "
    "many, and there is no p-value: it is computed once, when a comparison is complete.",
    "**Test.** A two-sided sign-flip test of the mean difference over the replicates. The main comparison "
    "is not corrected, being one, and neither is the second; those of the steps and the controls are "
    "corrected together by Holm's method, for each problem. Intervals are Student's, 95 %, and not "
    "corrected.",
    f"**The recommended recipe** is chosen by the mean of All on replicates 0 to {CHOOSING - 1} of glyphs "
    "and birds, and confirmed, against the method's own recipe, on replicates "
    f"{CHOOSING} to {REPLICATES - 1} and on another data set, which is not opened before.",
    "**Order.** The main comparison is trained first, then the second and the own recipe, then the steps, "
    "then the other controls. What time does not allow is named.",
)
