"""What is said of an explained image: on its mask, and on the check by removal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from captum_iba._reading.change_sentences import change_sentence
from captum_iba._reading.check_sentences import CONFIRMING, CheckRow, CheckSentences
from captum_iba._reading.decision import predicted_beside
from captum_iba._reading.mask_sentences import averages_sentence, unexplained
from captum_iba._reading.mask_state import averages_disagree
from captum_iba._reading.protocols import ExplainedImage
from captum_iba._reading.region_effects import (
    N_LOWERING,
    N_OPPOSING,
    is_of_mean_color,
    lowering,
    opposing,
    other_regions,
)
from captum_iba._reading.removal_check import ImageCheck
from captum_iba._reading.rows import ListedPart
from captum_iba._reading.thresholds import HALF, SAME, is_unexplained, lowers_it
from captum_iba._reading.wording import capitalized, format_probability, printable, quantity

OWN_STATISTICS = "this image only"
"""Statistics of the image itself, where there are no others."""
TRANSPARENT = "The image has transparent pixels: they lie on white, which is what the model sees."
_MANY = 8  # leading regions
_NO_CHANGE = "the removal changes no pixel: there the image has its mean color already"


def remark(image: ExplainedImage, is_confirmed: bool = False) -> str:
    """A sentence where the mask lost the prediction or needs no cell, or the image adds little; else empty.

    With ``is_confirmed`` a check has confirmed the leading regions, and nothing is said of the mask.
    """
    probability, closed = image.target_probability, image.closed_probability
    target, masked = printable(image.target_label), format_probability(image.masked_probability)
    if image.is_improbable and not lowers_it(probability, closed):
        return ""  # the check says that there is little to explain
    if image.needs_no_cell and not image.is_improbable and not is_confirmed:
        return (
            f"No cell stands out: with hardly any of the information {target} has {masked}. The bits say nothing. "
            f"{'Choose' if image.check is not None else 'Look at a check, or choose'} an earlier layer if there is one."
        )
    if image.lost_prediction and not is_confirmed:
        return (
            f"The mask removed too much: with the information in the bits alone the probability of {target} is "
            f"{masked}, and with none of it {format_probability(closed)}. The bits may miss what decides. "
            f"{'Use' if image.check is not None else 'Look at a check, or use'} a smaller beta."
        )
    if not is_unexplained(probability, closed):
        return ""
    if image.statistics == OWN_STATISTICS:
        return (
            f"The statistics are those of this image itself: with them {target} has {format_probability(closed)} "
            f"({format_probability(probability)} with the image), so that they do not show what the image adds. "
            "Statistics of other images do (estimate_statistics, --statistics-from)."
        )
    if averages_disagree(image):
        return ""  # the answer says so
    follows = "The image as a whole adds little to it"
    return unexplained(f"the probability of {target}", "this image", probability, closed, follows)


def check_sentences(image: ExplainedImage, check: ImageCheck) -> CheckSentences:
    """The check by removal in words."""
    then = ""
    if check.decision and image.target_label == image.predicted_label:
        still = "still " * (check.decision == image.predicted_label)
        then = f"{still}predicts {printable(check.decision)}"
        then += "" if still else f" ({format_probability(check.decision_probability or 0.0)})"
    return CheckSentences(
        check,
        len(image.leading),
        image.n_regions,
        _measured(image),
        "region",
        is_improbable=image.is_improbable,
        then=then,
        without_all=check.without_all if check.changes_pixels else None,
        doubt=_doubt(image, check) if check.changes_pixels else _NO_CHANGE,
        brief_doubt=_brief_doubt(check),
        spelled=[f"{image.name_of(i)} ({image.place_of(i)})" for i in range(image.n_regions)],
        other=_lowest_alone(image, check),
        shares=image.shares.tolist(),
        caveat=" ".join(filter(None, [_mean_color(image, check), _averages(image)])),
    )


def _averages(image: ExplainedImage) -> str:
    return "" if image.statistics == OWN_STATISTICS else averages_sentence(image, "this image")


def has_mean_color(image: ExplainedImage, check: ImageCheck) -> bool:
    """Whether an image of the mean color alone has at least half of the probability."""
    blank = check.without_all
    is_much = blank is not None and blank >= HALF * check.probability
    return is_much and check.changes_pixels and not image.is_improbable


def _mean_color(image: ExplainedImage, check: ImageCheck) -> str:
    """That an image of the mean color alone has much of the probability, where that is no reason for no verdict."""
    blank = check.without_all
    if not has_mean_color(image, check) or is_of_mean_color(check.probability, blank) or image.is_improbable:
        return ""
    return (
        f"Without any of the regions, as an image of the mean color alone, it is {format_probability(blank or 0.0)}: "
        "a removed region leaves edges, which can lower it, too."
    )


def _lowest_alone(image: ExplainedImage, check: ImageCheck) -> CheckRow | None:
    """The region that does not lead and without which alone the probability is lowest; None where none was removed."""
    removed = check.leading[: check.n_removed]  # also where none leads
    others = [i for i in other_regions(image, check) if i not in removed]
    if not others:
        return None
    return CheckRow(check.without_each[others[0]], f"{image.name_of(others[0])} ({image.place_of(others[0])})")


def _doubt(image: ExplainedImage, check: ImageCheck) -> str:
    """Why the removal of the leading regions is no evidence for them; empty where it is."""
    if is_of_mean_color(check.probability, check.without_all):
        target, blank = printable(image.target_label), format_probability(check.without_all or 0.0)
        return f"an image of the mean color alone, which removed regions get, is {target} with {blank}"
    if 2 * len(lowering(image, check)) > len(check.without_each) - len(image.leading) > 0:
        n_lower, n_others = len(lowering(image, check)), len(check.without_each) - len(image.leading)
        which = f"{n_lower} of the {n_others} other regions"
        return f"{which} lower {quantity(_measured(image))} by more than 10 points alone, too"
    return ""


def _brief_doubt(check: ImageCheck) -> str:
    if not check.changes_pixels:
        return "the removal changes no pixel"
    if is_of_mean_color(check.probability, check.without_all):
        return "an image of the mean color alone has the class, too"
    return "most other regions matter alone, too"


def decision(image: ExplainedImage) -> str:
    """The class and its probability, with the predicted one where that is another: "dog 3.0% (predicted: cat 90%)"."""
    said = f"{image.target_label} {format_probability(image.target_probability)}"
    beside = predicted_beside(image)
    return f"{said} ({beside})" if beside else said


def check_answer(image: ExplainedImage, check: ImageCheck) -> str:
    """The probability without the leading regions; where others matter, too, and are not all listed, how many."""
    lower = [] if image.is_improbable else lowering(image, check)
    against = [i for i in opposing(check) if i not in image.leading]
    n_lower, n_against = (f"{len(of)} regions that do not lead" for of in (lower, against))
    is_said = 2 * len(lower) > image.n_regions - len(image.leading)  # as the reason for no verdict
    others = f"{n_lower} lower it by more than 10 points alone" if len(lower) > N_LOWERING and not is_said else ""
    if len(against) > N_OPPOSING:
        others += f"{', and ' if others else ''}{n_against} may speak against {printable(image.target_label)}"
    sentences = [check_sentences(image, check).answer]
    if only_together(image, check):
        sentences.append(f"None of them alone lowers {quantity(_measured(image))} by 1% of its value.")
    sentences.append(change_sentence(check_sentences(image, check)))
    sentences.append(f"{capitalized(others)}." if others else "")
    if len(image.leading) > _MANY:
        sentences.append("What decides is spread over many regions.")
    sentences += [_large(image), regions_not_tried(image, check), TRANSPARENT * image.transparent]
    return " ".join(filter(None, sentences))


def _large(image: ExplainedImage) -> str:
    """That the leading regions are more than half of the image, where regions have different sizes; else empty."""
    sizes = [int(count) for count in np.bincount(image.regions.ravel())]
    share = sum(sizes[i] for i in image.leading) / sum(sizes)
    if share <= HALF or 2 * len(image.leading) > image.n_regions or not image.leading:
        return ""
    which = "leading region is" if len(image.leading) == 1 else f"{len(image.leading)} leading regions are"
    return f"The {which} {share:.0%} of the image; the others are smaller."


def regions_not_tried(image: ExplainedImage, check: ImageCheck) -> str:
    """How few regions were removed together, where the model makes the same prediction without them; else empty."""
    is_kept = check.decision == image.target_label and not image.is_improbable and check.changes_pixels
    if not is_kept or not 0 < len(image.measured) < image.n_regions:
        return ""
    together = f"{len(image.measured)} of the {image.n_regions} regions were removed alone and together"
    return f"{together}: others may matter, too (rerank, --rerank, measures more)."


def only_together(image: ExplainedImage, check: ImageCheck) -> bool:
    """Whether the probability falls without the leading regions, and without none of them alone."""
    if len(image.leading) < 2 or not check.without_each or check_sentences(image, check).verdict not in CONFIRMING:
        return False
    return bool(min(check.without_each[i] for i in image.leading) >= SAME * check.probability)


def unchecked_answer(image: ExplainedImage, rows: Sequence[ListedPart]) -> str:
    """The probability without all leading regions, where their order has removed them together; else empty."""
    if image.is_improbable:
        small = format_probability(image.target_probability)
        return f"{capitalized(_measured(image))} is small ({small}): there is little to explain."
    if not rows or math.isnan(rows[-1].without_so_far):
        return TRANSPARENT * image.transparent
    before, after = format_probability(image.target_probability), format_probability(rows[-1].without_so_far)
    changes = f"stays at {after}" if before == after else f"falls from {before} to {after}"
    which = f"the {len(rows)} leading regions" if len(rows) > 1 else "the leading region"
    said = f"Without {which} {_measured(image)} {changes} (not checked against other regions)."
    return f"{said} {TRANSPARENT * image.transparent}".strip()


def _measured(image: ExplainedImage) -> str:
    return f"the probability of {printable(image.target_label)}"
