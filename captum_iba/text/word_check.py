"""The order of the leading words of a text by their deletion, and the check of an attribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from captum_iba._explain.check import (
    Attempt,
    Kept,
    Progress,
    change_of_prediction,
    compare_with_others,
    kept_in_check,
    with_check,
)
from captum_iba._explain.leading_parts import (
    COVERED_DECREASE,
    GroupSearch,
    kept_with_one,
    larger_group,
    leading_in_order,
    most_without_one,
)
from captum_iba._reading.mask_state import is_improbable
from captum_iba._reading.order import count_leading, ranking, ranking_by_bits
from captum_iba._reading.places import is_punctuation
from captum_iba._reading.removal_check import DeletionCheck, PredictionChange
from captum_iba._reading.thresholds import ALL_DELETED_ALONE, N_RANDOM, SAME
from captum_iba._reading.words import ranked_words
from captum_iba.metrics.part_removal import removal_effects
from captum_iba.text.classifier import Classifier
from captum_iba.text.decisions import decision_about
from captum_iba.text.encoding import EncodedText
from captum_iba.text.gradients import gradient_x_activation_of_words
from captum_iba.text.heads import LOG_ODDS_EPS, ValueHead
from captum_iba.text.layers import Block
from captum_iba.text.result import TextAttribution
from captum_iba.text.word_removal import TextRemoval, keep_words

# Nats that a leading word adds to the others at least: the odds change by a tenth.
_ADDS, _ADDS_TO_CLOSENESS = 0.1, 0.02
_SMALL = 0.5  # nats, of log-odds that fall, and of a probability that keeps 99%: then no word leads
_N_ALONE = 8  # leading words that are deleted alone, of longer texts than those of which all are
_N_EXCHANGED = 12  # words of a longer text that may take the place of a leading one
_HALF, _N_CHANGING = 0.5, 20  # below this probability, and of so many words, what another head says is asked
_N_PAIRED = 20  # words of a text of which all pairs are tried
_N_MEASURED = 24  # words of a text that are measured where the first ones leave most of the probability


def settle_by_removal(
    removal: TextRemoval, attribution: TextAttribution, count: int, checked: Sequence[Block] | None
) -> TextAttribution:
    """The attribution with its order settled by removal, and its check; with the leading words of each repeat, too.

    Args:
        removal (TextRemoval): The model and the text.
        attribution (TextAttribution): Bits of the words.
        count (int): Number of words with the most bits that are put in order by removal, 0 for none.
        checked (sequence of Block, optional): Layers for the check (:func:`with_check_by_removal`). Default: None, no
            check.
    """

    def settled(one: TextAttribution) -> TextAttribution:
        if checked is not None:
            return with_check_by_removal(removal, one, count, checked)
        return rerank_by_removal(removal, one, count) if count else one

    found = settled(attribution)
    if not count or not attribution.repeats:
        return found
    of_repeats = []
    for bits in attribution.repeats:
        tokens = tuple(replace(token, bits=own) for token, own in zip(attribution.tokens, bits, strict=True))
        of_repeats.append(settled(replace(attribution, tokens=tokens, repeats=())).removal_order)
    return replace(found, repeated_leading=tuple(of_repeats))


def rerank_by_removal(
    removal: TextRemoval,
    attribution: TextAttribution,
    count: int,
    further: Sequence[int] = (),
    search: bool = False,
    known: Sequence[int] = (),
) -> TextAttribution:
    """The attribution with the effects of the ``count`` words with the most bits, and the order of the leading ones.

    Of a text of at most so many words all are measured, punctuation aside. Words at the floor of a longer text are not
    among them, unless they are ``further`` ones, by number; a single one of several words has no order. With
    ``search`` up to eight leading words of a text of at most 60 words give way to others if less is left without these;
    words that were not measured before are then. ``known`` are the leading words in their order, if they are known.
    """
    own = _is_own(removal.encoded, attribution)
    words = _words_to_measure(attribution, own, count, further)
    if not words or len(words) == 1 < int((~own).sum()):
        return attribution
    log_odds, is_value = _log_odds(removal, attribution), isinstance(removal.classifier.head, ValueHead)
    measured = removal_effects(log_odds, words, len(own))
    without = measured.whole - measured.alone
    effects = dict(zip(words, measured.effects.tolist(), strict=True))
    alone = dict(zip(words, (without if is_value else without.sigmoid()).tolist(), strict=True))
    before = attribution.without or (None,) * len(own)
    found = replace(
        attribution,
        effects=tuple(effects.get(i) for i in range(len(own))),
        without=tuple(alone.get(i, before[i]) for i in range(len(own))),
        removal_order=(),
        without_first=(),
        without_others=(),
    )
    helping = [i for i in ranking(found) if effects.get(i, 0.0) > 0]
    order = np.array([i for i in ranking(found) if not own[i]])
    is_short = len(own) <= ALL_DELETED_ALONE
    groups = None
    if search and is_short:
        groups = GroupSearch(helping, order.tolist(), enough=COVERED_DECREASE)
    elif search:  # words that were deleted alone may do more together, also those that raise it alone
        tried = [i for i in order.tolist() if before[i] is not None]
        groups = GroupSearch(helping[:_N_EXCHANGED], tried, n_candidates=_N_EXCHANGED, largest=1)
    if not helping and not known and (groups is None or len(order) > _N_PAIRED):
        return found
    if groups is not None and len(order) <= _N_PAIRED:
        others = [*helping, *(i for i in order.tolist() if i not in helping)]
        groups = groups._replace(others=others, n_begun=len(others), pairs=order.tolist())
    leading, values = leading_in_order(
        log_odds,
        order,
        len(helping),
        _adds(removal),
        groups,
        n_tried=len(helping),
        n_parts=len(own),
        probabilities=None if is_value else torch.sigmoid,
        known=known,
    )
    if not leading:
        return found
    if unmeasured := [i for i in leading if i not in effects]:
        return rerank_by_removal(removal, attribution, count, [*further, *unmeasured], search, known)
    in_turn = measured.whole.new_tensor(values)
    first = in_turn if is_value else in_turn.sigmoid()
    whole = float(measured.whole if is_value else measured.whole.sigmoid())
    if float(measured.whole - in_turn.min()) < _SMALL and float(first.min()) > SAME * whole:
        return found
    with_one = log_odds(kept_with_one(leading, len(own))) if len(leading) > 1 else first[:0]
    return replace(
        found,
        removal_order=tuple(leading),
        without_first=tuple(first.tolist()),
        without_others=tuple((with_one if is_value else with_one.sigmoid()).tolist()),
    )


def _words_to_measure(attribution: TextAttribution, own: Kept, count: int, further: Sequence[int]) -> list[int]:
    """Numbers of the words whose effect :func:`rerank_by_removal` measures."""
    order = [i for i in ranking_by_bits(attribution) if not own[i]]
    words = [i for i in order if not is_punctuation(attribution.words[i].word)]
    chosen = [i for i in order if attribution.shares[i] > 0][:count]
    if len(words) <= count:
        chosen = [i for i in order if i in chosen or i in words]
    return chosen + [i for i in further if i not in chosen]


def with_check_by_removal(
    removal: TextRemoval, attribution: TextAttribution, count: int, blocks: Sequence[Block]
) -> TextAttribution:
    """The attribution with its order settled by removal, and its check (:func:`captum_iba._explain.check.with_check`).

    Args:
        removal (TextRemoval): The model and the text.
        attribution (TextAttribution): Bits of the words.
        count (int): Number of words with the most bits that are put in order by removal, 0 for none. At most 24 are
            where these leave most of the probability.
        blocks (sequence of Block): Layers whose gradients choose the words of a long text that are deleted alone.
    """
    alone = _with_single_deletions(removal, attribution, blocks)

    def attempted(new: Attempt) -> TextAttribution:
        found = rerank_by_removal(removal, alone, *new) if new.n_measured else alone
        check = check_by_removal(removal, found)
        none = (None,) * len(found.words)
        of_check = none if check is None else check.without_each or none
        each = zip(found.without or none, of_check, strict=True)
        without = tuple(in_check if known is None else known for known, in_check in each)
        return replace(found, check=check, without=without if any(one is not None for one in without) else ())

    def larger(found: TextAttribution, enough: float) -> Sequence[int]:
        words = [i for i, is_own in enumerate(_is_own(removal.encoded, found)) if not is_own]
        if len(words) > ALL_DELETED_ALONE:
            return ()
        if not isinstance(removal.classifier.head, ValueHead):
            enough = math.log(enough / (1 - enough))
        return larger_group(_log_odds(removal, found), words, enough, len(found.words), _adds(removal))

    return _with_change(removal, with_check(attempted, count, _N_MEASURED, _missed, _progress, larger))


def _log_odds(removal: TextRemoval, attribution: TextAttribution) -> Callable[[Tensor], Tensor]:
    """Function of the kept words, (rows, W) booleans, that returns log-odds, or the closeness of a value, (rows,)."""
    column, is_value = _column(attribution), isinstance(removal.classifier.head, ValueHead)

    def log_odds(kept: Tensor) -> Tensor:
        found = removal.probabilities(_numbers(kept.numpy()))[:, column]
        return found if is_value else found.logit(eps=LOG_ODDS_EPS)

    return log_odds


def _adds(removal: TextRemoval) -> float:
    """What a leading word adds to the others at least."""
    return _ADDS_TO_CLOSENESS if isinstance(removal.classifier.head, ValueHead) else _ADDS


def _with_change(removal: TextRemoval, attribution: TextAttribution) -> TextAttribution:
    """The attribution with the fewest words that change the prediction, if that is what is explained."""
    classifier, check = removal.classifier, attribution.check
    if check is None or classifier.multi_label:
        return attribution
    if attribution.explained is not None:
        return replace(attribution, check=replace(check, change=_change_of_head(removal, attribution)))
    if not classifier.head.has_classes or attribution.target != attribution.predicted:
        return attribution
    found = change_of_prediction(
        lambda kept: removal.probabilities(_numbers(kept.numpy())),
        removal.tried,
        attribution.predicted,
        classifier.labels.__getitem__,
        len(attribution.words),
    )
    return replace(attribution, check=replace(check, change=found))


def _change_of_head(removal: TextRemoval, attribution: TextAttribution) -> PredictionChange | None:
    """The single words without which another head says something else, of those without which it falls below half."""
    about, words = attribution.explained, range(len(attribution.words))
    assert about is not None
    low = {i: without for i, without in enumerate(attribution.without) if without is not None and without < _HALF}
    if about.kind == "value" or about.label != about.predicted_label or not low:
        return None
    changed = []
    for i in sorted(low, key=low.__getitem__)[:_N_CHANGING]:
        decision = decision_about(removal.classifier, keep_words(removal.encoded, set(words) - {i}), about)
        if decision not in ("", about.label):
            changed.append((i, decision))
    if not changed:
        return None
    (first, decision), *_ = changed
    return PredictionChange((first,), decision, None, len(changed), tuple(sorted(changed)))


def _missed(attribution: TextAttribution) -> list[int]:
    """Numbers of up to eight words that lower the probability alone and were not measured."""
    assert attribution.check is not None
    rows = [row for of in ranked_words(attribution) for row in of if row.is_deleted and not row.is_measured]
    most = most_without_one(attribution.check.probability)
    return [row.number for row in sorted(rows, key=lambda row: row.without)[:_N_ALONE] if row.without <= most]


def _progress(attribution: TextAttribution) -> Progress | None:
    if attribution.check is None:
        return None
    whole = attribution.target_probability
    return Progress(
        whole,
        attribution.without_first[-1] if attribution.without_first else whole,
        attribution.removal_order,
        n_measured=sum(effect is not None for effect in attribution.effects),
        n_parts=sum(map(len, ranked_words(attribution))),
        is_improbable=is_improbable(attribution),
    )


def _with_single_deletions(
    removal: TextRemoval, attribution: TextAttribution, blocks: Sequence[Block]
) -> TextAttribution:
    """The attribution with the probabilities without single words of a long text; a check deletes all of others."""
    n_words = len(attribution.words)
    if n_words - int(_is_own(removal.encoded, attribution).sum()) <= ALL_DELETED_ALONE:
        return attribution
    known = attribution.without or (None,) * n_words
    of_text = words_deleted_alone(removal.classifier, removal.encoded, attribution, blocks)
    chosen = [i for i in of_text if known[i] is None]
    kept = [set(range(n_words)) - {i} for i in chosen]
    found = removal.probabilities(kept)[:, _column(attribution)].tolist()
    of_words = dict(zip(chosen, found, strict=True))
    return replace(attribution, without=tuple(of_words.get(i, known[i]) for i in range(n_words)))


def words_deleted_alone(
    classifier: Classifier, encoded: EncodedText, attribution: TextAttribution, blocks: Sequence[Block]
) -> list[int]:
    """Numbers of the 60 words of a long text that a check deletes alone.

    Two fifths of them have the most bits; of the others a third have the largest gradients times activations, and two
    thirds the most negative ones, which may speak against the target. Nothing speaks against the value of a regression.
    """
    own = _is_own(encoded, attribution)
    chosen = [i for i in ranking_by_bits(attribution) if not own[i]][:ALL_DELETED_ALONE]
    if isinstance(classifier.head, ValueHead):
        return chosen
    chosen = chosen[: 2 * ALL_DELETED_ALONE // 5]
    scores = gradient_x_activation_of_words(classifier, encoded, blocks, _column(attribution))
    others = [i for i in np.argsort(scores, kind="stable").tolist() if not own[i] and i not in chosen]
    n_against = 2 * (ALL_DELETED_ALONE - len(chosen)) // 3
    return chosen + others[:n_against] + others[len(others) - (ALL_DELETED_ALONE - len(chosen) - n_against) :]


def _column(attribution: TextAttribution) -> int:
    """The column of the probabilities that is explained."""
    about = attribution.explained
    return attribution.target if about is None else about.number if about.kind == "value" else 1


def _is_own(encoded: EncodedText, attribution: TextAttribution) -> Kept:
    """Which words are what is explained, (W,): they are never deleted."""
    about = attribution.explained
    return np.array([about is not None and about.holds(*word[1:]) for word in encoded.word_spans], dtype=bool)


def _numbers(kept: Kept) -> list[set[int]]:
    """Numbers of the kept words of each row."""
    return [set(np.flatnonzero(row).tolist()) for row in kept]


def check_by_removal(removal: TextRemoval, attribution: TextAttribution) -> DeletionCheck | None:
    """Probabilities of the target without the leading, the least, and as many other words at random.

    Of the leading ones at most half of all words are compared with others, and all together are deleted, too; where
    none leads, one word in nine. The first eight of them, or all words of a text of up to 60, are also deleted alone.
    What is explained itself, a word or an answer, is never deleted: without it there is no target. None where nothing
    else is left.
    """
    column, own = _column(attribution), _is_own(removal.encoded, attribution)
    if own.all():
        return None
    order = np.array([i for i in ranking(attribution) if not own[i]])
    n_leading = _count_to_delete(attribution, own)

    def probabilities(kept: Kept) -> list[float]:
        return list(removal.probabilities(_numbers(kept))[:, column].tolist())

    # Each of them is deleted alone, too, so that none is left to chance.
    is_short = len(order) <= ALL_DELETED_ALONE
    kept = kept_in_check(
        order,
        n_leading,
        int(attribution.settings.get("seed", 0)) % 2**63,
        np.array([i for i in ranking_by_bits(attribution) if not own[i]]),
        np.array([is_punctuation(word.word) for word in attribution.words]),
        n_single=ALL_DELETED_ALONE if is_short else N_RANDOM,
        n_parts=len(own),
    )
    fields, stays = compare_with_others(probabilities, kept, order[:n_leading].tolist())
    deleted = order[: min(n_leading, _N_ALONE)].tolist()
    if is_short:
        deleted = order.tolist() if len(order) > 1 else []
    alone = dict(zip(deleted, probabilities(~np.eye(len(own), dtype=bool)[deleted]), strict=True))
    decision, chance = _decision_without_leading(removal, attribution, stays)
    return DeletionCheck(
        **fields,
        without_first=attribution.without_first,
        without_others=attribution.without_others,
        decision=decision,
        decision_probability=chance,
        without_each=tuple(alone.get(i) for i in range(len(own))) if alone else (),
    )


def _count_to_delete(attribution: TextAttribution, own: Kept) -> int:
    """How many words a check deletes first: those that lead, or others with the most bits where none does."""
    leading, _ = ranked_words(attribution)
    # No word leads where hardly anything is needed: few are deleted then, which lead if they matter all the same.
    n_leading = len(leading) or count_leading(attribution)
    order = ranking(attribution)
    if not leading and not attribution.effects:
        n_leading = min(n_leading, max(1, round(len(order) / 9)))
    return n_leading - int(own[order[:n_leading]].sum())


def _decision_without_leading(
    removal: TextRemoval, attribution: TextAttribution, stays: Kept
) -> tuple[str, float | None]:
    """What the model decides without the leading words, and the probability of a class; empty for several labels."""
    classifier, (kept,) = removal.classifier, _numbers(stays[None])
    if classifier.head.has_classes and not classifier.multi_label:
        chances = removal.probabilities([kept])[0]
        return classifier.labels[int(chances.argmax())], float(chances.max())
    if attribution.explained is None:
        return "", None
    return decision_about(classifier, keep_words(removal.encoded, kept), attribution.explained), None
