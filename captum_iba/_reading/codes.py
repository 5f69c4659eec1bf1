"""What the sentences of an explanation say, as codes: of texts, images and responses.

``docs/reading.md`` says what each means.
"""

from __future__ import annotations

from collections.abc import Mapping

from captum_iba._reading.check_sentences import CONFIRMING, MOST_LEAD, NOT_CONFIRMED, VERDICTS, CheckSentences
from captum_iba._reading.findings import close_words, is_uncertain, unknown_words
from captum_iba._reading.image_sentences import OWN_STATISTICS, check_sentences, has_mean_color, regions_not_tried
from captum_iba._reading.mask_state import is_improbable, is_lowered, lost_prediction, needs_hardly_anything
from captum_iba._reading.prompt_sentences import (
    LEAST_PROBABILITY,
    gives_as_much,
    is_unlikely,
    lowers_response,
    measures_disagree,
    part_check,
)
from captum_iba._reading.protocols import ExplainedImage, ExplainedResponse, ExplainedText
from captum_iba._reading.region_effects import lowering
from captum_iba._reading.region_effects import opposing as opposing_regions
from captum_iba._reading.rows import SPEAKS_AGAINST
from captum_iba._reading.thresholds import is_lost, is_unexplained, keeps_little, lowers_it
from captum_iba._reading.word_sentences import (
    bits_of_another,
    has_other_order,
    hidden_evidence,
    is_nearly_undecided,
    is_undecided,
    least_effect,
    not_tried,
    opposing,
    word_check,
)


def findings(attribution: ExplainedText) -> list[str]:
    """What the sentences of an explanation say, as codes that do not change with their wording.

    ``docs/reading.md`` says what each means, in this order.
    """
    return _holding(by_code(attribution))


def _holding(codes: Mapping[str, object]) -> list[str]:
    return [code for code, holds in codes.items() if holds]


def _of_check(check: CheckSentences | None) -> dict[str, bool]:
    """The codes of a check."""
    if check is None:
        return dict.fromkeys(("not_compared", "weakly_confirmed", "not_confirmed"), False)
    return {
        "not_compared": check.why_no_verdict == MOST_LEAD.format(check.noun),
        "weakly_confirmed": check.verdict == VERDICTS[1],
        "not_confirmed": check.verdict == NOT_CONFIRMED,
    }


def by_code(attribution: ExplainedText) -> dict[str, bool]:
    """Whether each of the codes of :func:`findings` holds."""
    codes: dict[str, object] = {
        "truncated": attribution.tokens_truncated > 0,
        "doubted_input": attribution.doubt,
        "unknown_words": unknown_words(attribution),
        "prediction_lost": lost_prediction(attribution),
        "improbable_target": is_improbable(attribution),
        "hardly_anything_needed": needs_hardly_anything(attribution)
        and not is_improbable(attribution)
        and not is_lowered(attribution),
        "unexplained": _is_unexplained(attribution),
        "nearly_undecided": is_nearly_undecided(attribution) or is_undecided(attribution),
        "near_tie": close_words(attribution),
        **_of_check(None if attribution.check is None else word_check(attribution)),
        "hidden_evidence": attribution.check is not None
        and (hidden_evidence(attribution) or least_effect(attribution) == "falls"),
        "other_order": has_other_order(attribution),
        "lowered": is_lowered(attribution),
        "opposing_words": opposing(attribution) or least_effect(attribution) == "rises",
        "bits_disagree": bits_of_another(attribution),
        "partly_deleted": not_tried(attribution),
        "neutral_statistics": is_uncertain(attribution),
    }
    return {code: bool(holds) for code, holds in codes.items()}


def _is_unexplained(attribution: ExplainedText) -> bool:
    probability, closed = attribution.target_probability, attribution.closed_probability
    masked = attribution.masked_probability
    if closed is None or is_improbable(attribution) or lost_prediction(attribution):
        return False
    return is_unexplained(probability, closed) or (masked is not None and keeps_little(probability, masked, closed))


def image_findings(image: ExplainedImage) -> list[str]:
    """The codes of an explained image (:func:`findings`)."""
    check = image.check
    said = None if check is None else check_sentences(image, check)
    is_confirmed = said is not None and said.verdict in CONFIRMING
    return _holding(
        {
            "prediction_lost": image.lost_prediction,
            "improbable_target": image.is_improbable,
            "hardly_anything_needed": image.needs_no_cell and not image.is_improbable and not is_confirmed,
            "unexplained": not (image.lost_prediction or image.is_improbable)
            and is_unexplained(image.target_probability, image.closed_probability),
            **_of_check(said),
            "no_verdict": said is not None and said.doubt and not said.verdict and not image.is_improbable,
            "mean_color": check is not None and has_mean_color(image, check),
            "hidden_evidence": check is not None and not image.is_improbable and lowering(image, check),
            "lowered": not image.lost_prediction and lowers_it(image.target_probability, image.closed_probability),
            "opposing_parts": check is not None and opposing_regions(check),
            "partly_deleted": check is not None and regions_not_tried(image, check),
            "own_statistics": image.statistics == OWN_STATISTICS,
        }
    )


def prompt_findings(response: ExplainedResponse) -> list[str]:
    """The codes of an explained response (:func:`findings`)."""
    probability, closed = response.probability, response.closed_probability
    check = None if response.check is None else part_check(response)
    lost = is_lost(probability, response.masked_probability, closed)
    return _holding(
        {
            "cut_off": response.cut_off,
            "prediction_lost": lost,
            "improbable_target": response.contrast is None and probability < LEAST_PROBABILITY,
            "unlikely_response": is_unlikely(response),
            "unexplained": not lost and gives_as_much(response),
            **_of_check(check),
            "hidden_evidence": any(row.matters_alone for row in response.rows),
            "lowered": not lost and lowers_response(response),
            "opposing_parts": any(row.relation == SPEAKS_AGAINST for row in response.rows),
            "measures_disagree": measures_disagree(response),
            "system_not_explained": response.system,
        }
    )
