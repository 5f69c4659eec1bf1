"""Texts without some of their tokens: their probabilities, and the check of an attribution by deletion."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba._explain.leading_parts import (
    MOST_OF_DECREASE,
    N_PRUNED,
    exchanged_sequence,
    kept_in_check,
    kept_without_first,
    kept_without_leading,
    most_without_one,
    with_more_measured,
)
from captum_iba._reading.mask_sentences import is_improbable
from captum_iba._reading.order import count_leading, ranking, ranking_by_bits
from captum_iba._reading.places import is_punctuation
from captum_iba._reading.thresholds import ALL_DELETED_ALONE, N_RANDOM, SAME
from captum_iba._reading.words import ranked_words
from captum_iba.metrics.part_removal import RemovalSequence, first_to_cover, removal_effects
from captum_iba.text.classifier import Classifier
from captum_iba.text.decisions import decision_about
from captum_iba.text.encoding import EncodedText
from captum_iba.text.gradients import gradient_x_activation_of_words
from captum_iba.text.heads import LOG_ODDS_EPS, TARGET_ROW, ValueHead, with_row
from captum_iba.text.layers import Block
from captum_iba.text.result import DeletionCheck, TextAttribution

# Nats that a leading word adds to the others at least: the odds change by a tenth.
_ADDS, _ADDS_TO_CLOSENESS = 0.1, 0.02
_SMALL = 0.5  # nats, of log-odds that fall, and of a probability that keeps 99%: then no word leads
_N_ALONE = 8  # leading words that are deleted alone, of longer texts than those of which all are
_N_MEASURED = 24  # words of a text that are measured where the first ones leave most of the probability


def probabilities_of_texts(
    classifier: Classifier,
    texts: Sequence[EncodedText],
    batch_size: int,
    on_rows: Callable[[int], object] | None = None,
) -> Tensor:
    """Probabilities of the classes for texts of any length, (rows, C), float64, on the CPU.

    They run sorted by length, so that little is padded. A text without any token, not even a special token, runs as a
    padding token, because models need one. ``on_rows`` is called with the number of rows after each forward pass.
    """
    texts = [text if len(text) else _padding_token_only(classifier, text) for text in texts]
    probabilities = torch.empty(len(texts), classifier.head.n_columns, dtype=torch.float64)
    with torch.no_grad():
        for batch in classifier.batches([len(text) for text in texts], batch_size):
            logits = classifier.logits(*classifier.tensors([texts[i] for i in batch]).values())
            probabilities[batch] = classifier.head.precise_probabilities(logits).double().cpu()
            if on_rows is not None:
                on_rows(len(batch))
    return probabilities


@dataclass(frozen=True)
class TextRemoval:
    """What a model says of a text without some of its words: their tokens are deleted.

    Args:
        classifier (Classifier): The model.
        encoded (EncodedText): The text.
        batch_size (int): Largest number of rows of a forward pass.
        on_rows (Callable, optional): Is called with the number of rows after each forward pass. Default: None.

    Each set of words runs once.
    """

    classifier: Classifier
    encoded: EncodedText
    batch_size: int
    on_rows: Callable[[int], object] | None = None
    _known: dict[frozenset[int], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def probabilities(self, kept: Sequence[Collection[int]]) -> Tensor:
        """Probabilities of the columns, (rows, C), float64, with the words of each row alone, by number."""
        sets = list(map(frozenset, kept))
        if new := [words for words in dict.fromkeys(sets) if words not in self._known]:
            self._known.update(zip(new, self._probabilities(new), strict=True))
        if not sets:
            return torch.zeros(0, self.classifier.head.n_columns, dtype=torch.float64)
        return torch.stack([self._known[words] for words in sets])

    def _probabilities(self, kept: Sequence[Collection[int]]) -> Tensor:
        classifier, encoded = self.classifier, self.encoded
        versions = [keep_words(encoded, words) for words in kept]
        if TARGET_ROW in encoded.inputs:
            row = encoded.inputs[TARGET_ROW][:1]
            versions = [
                text if len(text) else with_row(_padding_token_only(classifier, text), row) for text in versions
            ]
        return probabilities_of_texts(classifier, versions, self.batch_size, self.on_rows)


def keep_words(encoded: EncodedText, words: Collection[int]) -> EncodedText:
    """A text with the tokens of some words only, by number, its special tokens, and what is explained.

    Examples::

        >>> (encoded,) = classifier.encode(["A wonderful film."], [None])
        >>> keep_words(encoded, {1, 2}).tokens
        ('[CLS]', 'wonderful', 'film', '[SEP]')
    """
    stay = encoded.is_target or (False,) * len(encoded)
    kept = [i for i, word in enumerate(encoded.words) if stay[i] or word is None or word in words]
    return keep_positions(encoded, kept)


def keep_positions(encoded: EncodedText, positions: Sequence[int]) -> EncodedText:
    """A text with the tokens at some positions only."""
    return replace(
        encoded,
        inputs={name: tuple(row[i] for i in positions) for name, row in encoded.inputs.items()},
        tokens=tuple(encoded.tokens[i] for i in positions),
        spans=tuple(encoded.spans[i] for i in positions),
        sequences=tuple(encoded.sequences[i] for i in positions),
        special=tuple(encoded.special[i] for i in positions),
        words=tuple(encoded.words[i] for i in positions),
        is_target=tuple(encoded.is_target[i] for i in positions) if encoded.is_target else (),
    )


def order_by_removal(
    removal: TextRemoval,
    attribution: TextAttribution,
    count: int,
    further: Sequence[int] = (),
    exchange: bool = False,
) -> TextAttribution:
    """The attribution with the effects of the ``count`` words with the most bits, and the order of the leading ones.

    Of a text of at most so many words all are measured, punctuation aside. Words at the floor of a longer text are not
    among them, unless they are ``further`` ones, by number; a single one of several words has no order. With
    ``exchange`` up to eight leading words of a text of at most 60 words are exchanged for other measured ones if less
    is left without these.
    """
    own = _is_own(removal.encoded, attribution)
    order = [i for i in ranking_by_bits(attribution) if not own[i]]
    n_words = sum(not is_punctuation(attribution.words[i].word) for i in order)
    above = [i for i in order if attribution.shares[i] > 0][:count]
    if n_words <= count:
        above = [i for i in order if i in above or not is_punctuation(attribution.words[i].word)]
    words = above + [i for i in further if i not in above]
    if not words or len(words) == 1 < len(order):
        return attribution
    column, is_value = _column(attribution), isinstance(removal.classifier.head, ValueHead)

    def log_odds(kept: Tensor) -> Tensor:
        numbers = [set(np.flatnonzero(row).tolist()) for row in kept.numpy()]
        found = removal.probabilities(numbers)[:, column]
        return found if is_value else found.logit(eps=LOG_ODDS_EPS)

    measured = removal_effects(log_odds, words, len(own))
    without = measured.whole - measured.alone
    effects = dict(zip(words, measured.effects.tolist(), strict=True))
    alone = dict(zip(words, (without if is_value else without.sigmoid()).tolist(), strict=True))
    numbers = range(len(own))
    known = attribution.without or (None,) * len(own)
    of_words, without_each = tuple(map(effects.get, numbers)), tuple(alone.get(i, known[i]) for i in numbers)
    found = replace(attribution, effects=of_words, without=without_each, removal_order=(), without_first=())
    leading = _leading(log_odds, found, measured.whole)
    if len(leading) > N_PRUNED and len(own) > ALL_DELETED_ALONE:  # it would take hundreds of passes of a long text
        without = log_odds(kept_without_first(leading, len(leading), len(own))).double()
        in_turn = RemovalSequence(tuple(leading), without[1:])
    else:
        others = [i for i in words if effects[i] > 0] if exchange and len(own) <= ALL_DELETED_ALONE else []
        tolerance = _ADDS_TO_CLOSENESS if is_value else _ADDS
        in_turn = exchanged_sequence(log_odds, leading, others, len(own), tolerance)
    first = in_turn.without if is_value else in_turn.without.sigmoid()
    before = float(measured.whole if is_value else measured.whole.sigmoid())
    decrease = float(measured.whole - in_turn.without.min()) if leading else 0.0
    if decrease < _SMALL and (not leading or float(first.min()) > SAME * before):
        return found
    # Log-odds fall on where the probability has nothing more to lose.
    count = first_to_cover(before - first, MOST_OF_DECREASE)
    return replace(found, removal_order=in_turn.parts[:count], without_first=tuple(first[:count].tolist()))


def _leading(log_odds: Callable[[Tensor], Tensor], attribution: TextAttribution, whole: Tensor) -> list[int]:
    """The first words in the order of their effects without which the log-odds fall by 90% of what they fall at most.

    None where no word has an effect, or the log-odds do not fall.
    """
    order = [i for i in ranking(attribution) if (attribution.effects[i] or 0.0) > 0]
    if not order:
        return []
    kept = kept_without_first(order, len(order), len(attribution.words))
    decreases = whole.double() - log_odds(kept[1:]).double()
    return order[: first_to_cover(decreases)] if float(decreases.max()) > 0 else []


def checked(removal: TextRemoval, attribution: TextAttribution, count: int, blocks: Sequence[Block]) -> TextAttribution:
    """The attribution with its check; words that lower the probability alone, and were not measured, are measured then.

    Leading words are exchanged for other measured ones if less is left without these. Where they leave most of the
    probability, or all measured words lead, up to 24 words are measured. They count if the leading ones among them
    leave less.

    ``count`` is the number of words with the most bits that are put in order by removal, 0 for none. ``blocks`` are the
    layers whose gradients choose the words of a long text that are deleted alone.
    """
    if count:
        attribution = order_by_removal(removal, attribution, count, exchange=True)
    attribution = _with_single_deletions(removal, attribution, blocks)
    found = replace(attribution, check=check_by_deletion(removal, attribution))
    if found.check is None or not count:
        return found
    rows = [row for of in ranked_words(found) for row in of]
    unmeasured = [row for row in rows if row.is_deleted and not row.is_measured]
    most = most_without_one(found.check.probability)
    missed = [row.number for row in sorted(unmeasured, key=lambda row: row.without)[:_N_ALONE] if row.without <= most]

    def measured(n_words: int) -> TextAttribution:
        again = order_by_removal(removal, attribution, n_words, missed, exchange=True)
        return replace(again, check=check_by_deletion(removal, again))

    found = measured(count) if missed else found
    if count >= _N_MEASURED or is_improbable(found):
        return found
    n_measured = sum(effect is not None for effect in found.effects)
    all_lead = len(found.removal_order) == n_measured < len(rows)
    return with_more_measured(found, lambda: measured(_N_MEASURED), _left, found.target_probability, all_lead)


def _left(attribution: TextAttribution) -> float:
    """The probability without the leading words; that of the whole text where none leads."""
    return attribution.without_first[-1] if attribution.without_first else attribution.target_probability


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


def _is_own(encoded: EncodedText, attribution: TextAttribution) -> npt.NDArray[np.bool_]:
    """Which words are what is explained, (W,): they are never deleted."""
    about = attribution.explained
    return np.array([about is not None and about.holds(*word[1:]) for word in encoded.word_spans], dtype=bool)


def check_by_deletion(removal: TextRemoval, attribution: TextAttribution) -> DeletionCheck | None:
    """Probabilities of the target without the leading, the least, and as many other words at random.

    Of the leading ones at most half of all words are compared with others, and all together are deleted, too; where
    none leads, one word in nine. The first eight of them, or all words of a text of up to 60, are also deleted alone.
    What is explained itself, a word or an answer, is never deleted: without it there is no target. None where nothing
    else is left.
    """
    classifier, encoded = removal.classifier, removal.encoded
    column, own = _column(attribution), _is_own(encoded, attribution)
    leading, _ = ranked_words(attribution)
    seed = int(attribution.settings.get("seed", 0)) % 2**63
    order = np.array(ranking(attribution))
    # No word leads where hardly anything is needed: few are deleted then, which lead if they matter all the same.
    n_leading = len(leading) or count_leading(attribution)
    if not leading and not attribution.effects:
        n_leading = min(n_leading, max(1, round(len(order) / 9)))
    n_leading -= int(own[order[:n_leading]].sum())
    if own.all():
        return None
    others = np.flatnonzero(~own)
    marks = np.array([is_punctuation(word.word) for word in attribution.words])[others]
    order = order[~own[order]]
    ordered = np.searchsorted(others, order)
    by_bits = np.array([i for i in ranking_by_bits(attribution) if not own[i]])
    # Each of them is deleted alone, too, so that none is left to chance.
    n_single = ALL_DELETED_ALONE if len(others) <= ALL_DELETED_ALONE else N_RANDOM
    compared = kept_in_check(ordered, n_leading, seed, np.searchsorted(others, by_bits), marks, n_single)
    all_leading = kept_without_leading(compared, ordered, n_leading)
    n_compared, n_all = len(compared), len(all_leading)
    kept = np.ones((n_compared + n_all, len(own)), dtype=bool)
    kept[:, others] = np.concatenate([compared, all_leading])
    numbers = [set(np.flatnonzero(words).tolist()) for words in kept]
    n_alone = len(others) if 1 < len(others) <= ALL_DELETED_ALONE else min(n_leading, _N_ALONE) * (n_leading > 1)
    n_deleted, decision = int((~kept[1]).sum()), ""
    numbers += [numbers[0] - {number} for number in order[:n_alone].tolist()]
    probabilities = removal.probabilities(numbers)
    found = probabilities[:, column].tolist()
    whole, without_leading, without_least, *at_random = found[:n_compared]
    without_leading, alone = found[n_compared] if n_all else without_leading, found[n_compared + n_all :]
    if n_leading == n_deleted == 1 < len(others):
        alone = alone or [without_leading]
    without_each: list[float | None] = [None] * len(own) if alone else []
    for number, without in zip(order.tolist(), alone, strict=False):
        without_each[number] = without
    if classifier.head.has_classes and not classifier.multi_label:
        decision = classifier.labels[int(probabilities[n_compared if n_all else 1].argmax())]
    elif attribution.explained is not None:
        left = keep_words(encoded, numbers[n_compared if n_all else 1])
        decision = decision_about(classifier, left, attribution.explained)
    return DeletionCheck(
        n_words=n_deleted,
        probability=whole,
        without_leading=without_leading,
        without_least=without_least,
        without_random=float(np.mean(at_random)),
        n_random=len(at_random),
        without_each=tuple(without_each),
        decision=decision,
        lowest_random=min(at_random),
    )


def _padding_token_only(classifier: Classifier, encoded: EncodedText) -> EncodedText:
    """A single padding token that the model attends to."""
    values = {"input_ids": classifier.pad_id, "attention_mask": 1}
    return replace(
        encoded,
        inputs={name: (values.get(name, 0),) for name in encoded.inputs},
        tokens=("",),
        spans=((0, 0),),
        sequences=(None,),
        special=(True,),
        words=(None,),
        is_target=(),
    )
