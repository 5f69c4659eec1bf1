"""A check by deletion in words: the answer, and whether the leading words, regions or parts are confirmed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from captum_iba._reading.removal_check import RemovalCheck
from captum_iba._reading.rows import ListedPart
from captum_iba._reading.thresholds import LARGE_DROP, MOST, MUCH, N_RANDOM, RULED_OUT, SAME, fraction_left
from captum_iba._reading.wording import capitalized, enumerated, format_probability, quantity

_HALF = 0.5  # of a probability, what is left at most without words or regions that are confirmed
_NAMED, _LISTED = 5, 8
_MANY = 8  # leading words, of which the number is told
_CHANGES = 0.02  # of a probability without the words with the fewest bits, which are named then
_TIE = 0.1  # nats of log-odds, within which two words are equal
_WHOLE = {"word": "text", "part": "prompt", "region": "image"}
VERDICTS = ("confirmed", "weakly confirmed", "not confirmed")
"""What a check says of the leading words: without them the probability falls by at least half of its value (that of a
response by a quarter) and twice as far as without others; by less; or by no more than 1%, or than without others."""
NOT_CONFIRMED, CONFIRMING = VERDICTS[2], VERDICTS[:2]
MOST_LEAD, ONLY_ONE = "most {}s lead", "there is only one {}"
"""Why nothing is left to compare the leading words with."""


class CheckRow(NamedTuple):
    """One line of a check.

    Attributes:
        probability (float): The probability.
        what (str): What the model got: "without the 2 leading words".
    """

    probability: float
    what: str


@dataclass(frozen=True)
class CheckSentences:
    """A check by deletion in words.

    Attributes:
        check (RemovalCheck): Probabilities.
        n_leading (int): Number of words that lead; 0 where none does.
        n_words (int): Number of words that can be deleted.
        measured (str): What has the probability: "the probability of positive".
        noun (str): What is deleted. Default: "word".
        names (sequence of str): The leading words, or the deleted ones where none leads; empty if they are not named.
            Default: none.
        places (sequence of str): Which text each is of, "first text"; empty if there is only one. Default: none.
        where (sequence of str): Where each of them is, "word 4", for those that are there several times. Default: none.
        copies (mapping): How often each name, or each name and place, is in the text. Default: none is known.
        is_improbable (bool): Whether the model gives it little probability with all words, too. Default: False.
        is_opposed (bool): Whether the deletion of some word raises it by much, so that there is something to explain.
            Default: False.
        then (str): What the model does without the leading words, "still predicts positive"; empty where that is not
            known. Default: "".
        most_lead (bool): Whether more than half of all words lead, so that too few others are left. Default: False.
        counted (str): How many lead, where punctuation marks are not counted: "21 of 40 without punctuation marks".
            Default: "".
        n_marks (int): How many of the words that are deleted for comparison are punctuation marks. Default: 0.
        without_all (float, optional): Probability of an image of the mean color alone. Default: None, not known.
        doubt (str): Why there is no verdict, though the check has deleted words; empty where there is one. Default: "".
        brief_doubt (str): The same without numbers, for :func:`summary`. Default: ``doubt``.
        caveat (str): A sentence at the end of :attr:`answer`, which does not change the verdict. Default: "".
        less (str): A sentence on fewer leading words, after the first sentence of :attr:`answer`. Default: "".
        spelled (sequence of str): Every word by its number, as sets of words name it. Default: none, they do not.
        marks (sequence of bool): Whether each word, by its number, is a punctuation mark. Default: none is.
        n_alone (int): Number of words that were deleted alone. Default: 0, not known.
        other (CheckRow, optional): Of the words that do not lead and were deleted alone the one without which the
            probability is lowest, by its name. Default: None, not known.
        shares (sequence of float): Share of the bits of every word by its number. Default: none is known.

    Examples::

        >>> from captum_iba._reading.removal_check import DeletionCheck
        >>> check = DeletionCheck(2, 0.9, 0.2, 0.91, 0.8, 10)
        >>> said = CheckSentences(check, 2, 7, "the probability", names=("dull", "boring"))
        >>> said.answer
        'Without "dull" and "boring" the probability falls from 90.0% to 20.0%.'
        >>> said.title, said.rows[1]
        ('Check of the leading words: confirmed', CheckRow(probability=0.2, what='without the 2 leading words'))
    """

    check: RemovalCheck
    n_leading: int
    n_words: int
    measured: str
    noun: str = "word"
    names: Sequence[str] = ()
    places: Sequence[str] = ()
    where: Sequence[str] = ()
    copies: Mapping[str | tuple[str, str], int] = field(default_factory=dict)
    is_improbable: bool = False
    is_opposed: bool = False
    then: str = ""
    most_lead: bool = False
    counted: str = ""
    n_marks: int = 0
    without_all: float | None = None
    doubt: str = ""
    brief_doubt: str = ""
    caveat: str = ""
    less: str = ""
    spelled: Sequence[str] = ()
    marks: Sequence[bool] = ()
    n_alone: int = 0
    other: CheckRow | None = None
    shares: Sequence[float] = ()

    @property
    def answer(self) -> str:
        """The probability without the leading words, and what the model predicts then."""
        probability, without = self.check.probability, self.check.without_leading
        if self.is_improbable:
            small = "next to nothing" if probability < RULED_OUT else "small"
            little = "" if self.is_opposed else ": there is little to explain"
            return f"{capitalized(self.measured)} is {small} ({format_probability(probability)}){little}."
        before, after = format_probability(probability), format_probability(without)
        left = fraction_left(self.check)
        falls = "falls" if left <= MOST else "falls a little,"
        verb = falls if left <= SAME else "rises" if left >= 1 / SAME else "hardly changes,"
        changes = f"stays at {after}" if before == after else f"{verb} from {before} to {after}"
        comma = "," * (not self.names and not self.n_leading and self._deleted_by_name.endswith(")"))
        sentence = f"Without {self._deleted_by_name}{comma} {self.measured} {changes}"
        if self.verdict == NOT_CONFIRMED:
            sentence = f"Not confirmed: w{sentence[1:]}"
        if self.then:
            sentence += f", and the model {self.then}"
        if (
            left <= SAME
            and not self._is_least
            and (self.verdict == NOT_CONFIRMED or (self.doubt and not self._most_lead))
        ):
            sentence += f". {self._without_others}"
        if self.doubt:
            sentence += f". No verdict, because {self.doubt}"
        elif self._most_lead:
            most = "all" if self.n_leading >= self.n_words else "more than half of all"
            counted = f" ({self.counted})" * (most != "all" and bool(self.counted))
            why = f"{most} {self.noun}s lead{counted}{', so that too few others are left' * (most != 'all')}"
            sentence += f". Not compared with others, because {why}"
        return " ".join(filter(None, [f"{sentence}.", self.less, self.caveat]))

    @property
    def title(self) -> str:
        """The verdict, as the title of :attr:`rows`; empty without these."""
        if not self.rows:
            return ""
        weak = f", because {' and '.join(self._why_weak)}" if self.verdict == VERDICTS[1] else ""
        said = f": {self.verdict}{weak}" * bool(self.verdict)
        words = f"{self.noun}s" if self.check.n_removed > 1 else self.noun
        which = f"leading {words}" if self.n_leading else f"{words} with the most bits"
        return f"Check of the {which}{said}"

    @property
    def rows(self) -> list[CheckRow]:
        """The probabilities with everything, without the leading words, and without others; empty without others."""
        if self.check.n_removed == self.n_words or self.is_improbable:
            return []
        if self._most_lead:
            return self._rows_of_most
        check, other = self.check, self._strong_other
        shown = CheckRow(check.without_random, f"without {self._at_random}")
        if check.n_random > 1:
            lowest, is_other = "", False
            if check.lowest_random is not None:
                is_other = other is not None and check.n_removed == 1 and other.probability == check.lowest_random
                named = other.what if other is not None and is_other else self.listed(check.lowest_set)
                is_strong = is_other or check.lowest_random < self._halfway
                which = f": {named}" * (is_strong and bool(named))
                lowest = f", the lowest {format_probability(check.lowest_random)}{which}"
            shown = shown._replace(what=f"{shown.what} (mean of {check.n_random}{lowest})")
            other = None if is_other else other
        rows = [
            CheckRow(check.probability, f"with the whole {_WHOLE[self.noun]}"),
            CheckRow(check.without_leading, f"without {self._leading_by_number}"),
            shown,
        ]
        change = abs(check.without_least - check.probability)
        named = self.listed(check.least, any_number=change >= LARGE_DROP) if change >= _CHANGES else ""
        least = CheckRow(check.without_least, f"without the {self._with_fewest_bits}{f', {named}' * bool(named)}")
        is_same = format_probability(check.without_random) == format_probability(check.without_least)
        rows += [] if check.n_random == 1 and is_same else [least]
        is_told = (
            check.n_random == 1 == check.n_removed and other is not None and other.probability == check.without_random
        )
        if other is not None and not is_told:
            rows.append(CheckRow(other.probability, f"without another {self.noun} alone, {other.what}"))
        return [*rows, *self._row_of_color]

    @property
    def _rows_of_most(self) -> list[CheckRow]:
        """The probabilities where fewer words are left than lead: without these, and without the others."""
        check, n_others = self.check, self.n_words - self.check.n_removed
        if check.without_rest is None:
            return []
        others = f"{n_others} other {self.noun}s" if n_others > 1 else f"other {self.noun}"
        rows = [
            CheckRow(check.probability, f"with the whole {_WHOLE[self.noun]}"),
            CheckRow(check.without_leading, f"without {self._leading_by_number}"),
            CheckRow(check.without_rest, f"without the {others}"),
        ]
        return [*rows, *self._row_of_color]

    @property
    def _row_of_color(self) -> list[CheckRow]:
        return [] if self.without_all is None else [CheckRow(self.without_all, "of an image of the mean color alone")]

    @property
    def comparison(self) -> str:
        """:attr:`title` and :attr:`rows` as sentences; empty without others to compare with."""
        if not self.rows:
            return ""
        said = ", ".join(f"{format_probability(row.probability)} {row.what}" for row in self.rows)
        return f"{self.title}. {capitalized(self.measured)} is {said}."

    @property
    def none_leads(self) -> bool:
        """Whether no word leads, so that the deletion of those with the most bits is no answer."""
        return not self.n_leading and not self.is_improbable

    @property
    def verdict(self) -> str:
        """One of :data:`VERDICTS`; empty where the check says nothing of the leading words.

        That is where none leads or all words are deleted, for a class of little probability, where there is a
        ``doubt``, and where more than half of all words lead, so that too few others are left to compare with.
        """
        no_test = not self.n_leading or self.check.n_removed == self.n_words or self._most_lead
        if no_test or self.is_improbable or self.doubt:
            return ""
        left = fraction_left(self.check)
        if left > SAME or not self._is_least:
            return NOT_CONFIRMED
        return VERDICTS[1] if self._why_weak else VERDICTS[0]

    @property
    def why_no_verdict(self) -> str:
        """Why there is no :attr:`verdict`, in a few words; empty where there is one."""
        if self.verdict:
            return ""
        if self.is_improbable:
            return f"the {'response' if self.noun == 'part' else 'class'} has little probability"
        if not self.n_leading:
            return f"no {self.noun} leads"
        if self.doubt:
            return self.brief_doubt or self.doubt
        return ONLY_ONE.format(self.noun) if self.n_words == 1 else MOST_LEAD.format(self.noun)

    @property
    def _why_weak(self) -> list[str]:
        """What keeps the leading words from being confirmed; empty if nothing does."""
        # A mean over the tokens of a response falls less: many of them follow from those before them.
        of_color = self.without_all is not None and self.without_all >= _HALF * self.check.probability
        blank = [f"an image of the mean color alone has more than half of {quantity(self.measured)}"] * of_color
        if fraction_left(self.check) > (MUCH if self.noun == "part" else _HALF):
            return [f"most of {quantity(self.measured)} is left", *blank]
        one = self._strong_other is not None
        take = f"another {self.noun} alone takes" if one else f"other {self.noun}s take"
        much = "as much" if self._without_any_others <= self.check.without_leading else "more than half as much"
        others = [f"{take} {much} of {quantity(self.measured)}"] if self._without_any_others < self._halfway else []
        return [*others, *blank]

    @property
    def _is_least(self) -> bool:
        """Whether the probability is lower without the leading words than without any others that are deleted.

        A single leading word is also chosen where another one lowers the log-odds as far within a tolerance.
        """
        alone, others = self.check.without_leading, self._without_any_others
        if self.check.n_removed > 1 or self.other is None or self.other.probability > others:
            return alone < others
        return _log_odds(alone) < _log_odds(others) + _TIE

    @property
    def _halfway(self) -> float:
        """The probability after half of the decrease without the leading words."""
        return (self.check.probability + self.check.without_leading) / 2

    @property
    def _strong_other(self) -> CheckRow | None:
        """The word without which alone half of that decrease is reached; None where there is no such word."""
        return None if self.other is None or self.other.probability >= self._halfway else self.other

    @property
    def _without_any_others(self) -> float:
        """The lowest probability without other words: at random, with the fewest bits, or one alone."""
        known = [self.check.lowest_random, None if self.other is None else self.other.probability]
        known += [self.check.without_random, self.check.without_least]
        return min(probability for probability in known if probability is not None)

    @property
    def _without_others(self) -> str:
        """A sentence on the other words that lower the probability furthest: one alone, the least, or a draw."""
        check = self.check
        least, drawn = self.listed(check.least), self.listed(check.lowest_set)
        sets = f"one of {check.n_random} sets of other {self.noun}s"
        if check.n_removed == 1:
            sets = f"another {self.noun}"
        elif check.n_random == 1:
            sets = f"the {self._others('other ')}"
        of_draw = check.without_random if check.lowest_random is None else check.lowest_random
        found = [
            (check.without_least, f"the {self._with_fewest_bits}{f', {least},' * bool(least)}"),
            (of_draw, f"{sets}{f', {drawn},' * bool(drawn)}"),
        ]
        if self.other is not None:
            found.insert(0, (self.other.probability, f"another {self.noun} alone, {self.other.what},"))
        lowest, which = min(found, key=lambda one: one[0])
        after, by_leading = format_probability(lowest), format_probability(check.without_leading)
        return f"Without {which} it falls {'as far' if after == by_leading else 'further'}, to {after}"

    def listed(self, numbers: Sequence[int], any_number: bool = False) -> str:
        """A few words by their numbers; of many the first ones, or none; empty where they are not spelled."""
        if not numbers or not self.spelled or (len(numbers) > _LISTED and not any_number):
            return ""
        return enumerated([self.spelled[i] for i in numbers[:_LISTED]], max(len(numbers) - _LISTED, 0))

    @property
    def _most_lead(self) -> bool:
        """Whether more than half of all words lead, so that others which are deleted for comparison lead, too."""
        too_few = self.n_words > 1 and (not self.check.n_random or self.check.n_removed < self.n_leading)
        return (self.most_lead or too_few) and not self.is_improbable

    @property
    def _deleted_by_name(self) -> str:
        """The deleted words by name, or by their number."""
        if self.names:
            named = list(zip(self.names, self.places or [""] * len(self.names), strict=True))
            counts, where = list(Counter(named).items()), dict(zip(named, self.where, strict=False))
            counts = counts[: len(counts) if len(counts) == _NAMED + 1 else _NAMED]  # "another" hides no single one
            quoted = [
                f'"{name}"{self._which_copies(name, place, count, where.get((name, place), ""))}'
                for (name, place), count in counts
            ]
            if more := len(self.names) - sum(count for _, count in counts):
                words = f"{self.noun}{'s' * (more > 1)}"
                others = f"{more} other" if more > 1 else "another"
                following = f"the {more} next" if more > 1 else "the next"
                quoted.append(f"{others} leading {words}" if self.n_leading else f"{following} {words} by bits")
            of_all = f" ({self.n_leading} of {self.n_words} {self.kinds})" * (self.n_leading > _MANY)
            return enumerated(quoted) + of_all + f", the only {self.noun}," * (self.n_words == 1)
        return self._leading_by_number

    @property
    def _leading_by_number(self) -> str:
        """The deleted words by their number."""
        if not self.n_leading:
            name, leading = "", self.check.leading
            if self.check.n_removed == 1 and (self.names or (self.spelled and leading)):
                name = f", {self.spelled[leading[0]]}" if self.spelled and leading else f', "{self.names[0]}"'
            return f"the {self._several('{}s with the most bits')}{name}"
        if self.check.n_removed < self.n_leading:
            return f"the {self.n_leading} leading {self.noun}s"
        return f"the {self._several('leading {}s')}"

    @property
    def kinds(self) -> str:
        """What is deleted, in the plural: of a text words and punctuation marks."""
        return "words and punctuation marks" if self.noun == "word" else f"{self.noun}s"

    def _which_copies(self, name: str, place: str, count: int, where: str) -> str:
        copies = self.copies.get((name, place) if place else name, count)
        if count == 1 < copies and where:
            return f" ({where})"
        which = "one" if count == 1 else count
        times = f"{which} of the {copies}" if count < copies else f"{count} times" if count > 1 else ""
        said = ", ".join(filter(None, [place, times]))
        return f" ({said})" if said else ""

    @property
    def _at_random(self) -> str:
        several, others = self.check.n_removed > 1, self._others("other ")
        if self.check.n_random == 1:  # there is no other set
            return f"the {others}" if several else f"the {'punctuation mark' if self.n_marks else f'other {self.noun}'}"
        if not several:
            is_drawn = self.check.n_random == N_RANDOM < self.n_words - 1  # else each of them was tried
            random = " at random" * is_drawn
            return f"{'a punctuation mark' if self.n_marks else f'another {self.noun}'}{random}"
        return f"{others} at random"

    @property
    def _with_fewest_bits(self) -> str:
        if self.n_marks:
            return f"{self._others() if self.check.n_removed > 1 else 'punctuation mark'} with the fewest bits"
        return self._several(f"{self.other_of_fewest}{{}}s with the fewest bits")

    @property
    def other_of_fewest(self) -> str:
        """ "other " where a leading word has fewer bits than one of the others with the fewest; else empty."""
        least, leading = self.check.least, self.check.leading
        if not (least and leading and len(self.shares)):
            return ""
        return "other " if max(self.shares[i] for i in least) > min(self.shares[i] for i in leading) else ""

    def _others(self, other: str = "") -> str:
        """What is deleted for comparison: "3 other words and 1 punctuation mark"."""
        counts = ((self.check.n_removed - self.n_marks, self.noun), (self.n_marks, "punctuation mark"))
        named = [(n, f"{noun}{'s' * (n > 1)}") for n, noun in counts if n]
        return " and ".join(f"{n} {other * (i == 0)}{noun}" for i, (n, noun) in enumerate(named))

    def _several(self, words: str) -> str:
        """ "2 leading words", or "leading word" of a single one, of "leading {}s"."""
        if self.check.n_removed > 1:
            return f"{self.check.n_removed} {words.format(self.noun)}"
        return words.replace("{}s", self.noun)


def _log_odds(probability: float) -> float:
    least = 1e-12
    return math.log(max(probability, least) / max(1 - probability, least))


def summary(checks: Sequence[CheckSentences | None], inputs: str = "") -> str:
    """What the checks of several inputs say together, in one line; empty of fewer than two.

    Args:
        checks (sequence of CheckSentences or None): The checks, None of an input without one.
        inputs (str): What is counted, in the singular: "explanation". Default: "text", "prompt" or "image".

    Examples::

        >>> from captum_iba._reading.removal_check import DeletionCheck
        >>> good = CheckSentences(DeletionCheck(1, 0.9, 0.2, 0.9, 0.8, 10), 1, 7, "the probability")
        >>> summary([good, good, CheckSentences(DeletionCheck(1, 0.9, 0.9, 0.9, 0.9, 10), 0, 7, "the probability")])
        'Check of 2 texts: the leading words are confirmed in 2. No verdict for 1 more text: no word leads.'
    """
    known = [check for check in checks if check is not None]
    if len(known) < 2:
        return ""
    counts, noun = Counter(check.verdict for check in known), known[0].noun
    inputs = inputs or _WHOLE[noun]
    n_none, n_judged = counts[""], len(known) - counts[""]
    said = ", ".join(f"{verdict} in {counts[verdict]}" for verdict in VERDICTS if counts[verdict])
    sentences = []
    if n_judged:
        sentences.append(f"Check of {n_judged} {inputs}{'s' * (n_judged > 1)}: the leading {noun}s are {said}.")
    if n_none:
        reasons = Counter(check.why_no_verdict for check in known if not check.verdict)
        named = ", ".join(f"{why}{f' ({count})' * (len(reasons) > 1)}" for why, count in reasons.items())
        more = f"{n_none}{' more' * bool(n_judged)} {inputs}{'s' * (n_none > 1)}"
        sentences.append(f"No verdict for {more}: {named}.")
    return " ".join(sentences)


def lowest_alone(others: Sequence[ListedPart]) -> CheckRow | None:
    """The one of these words without which alone the probability is lowest; None where none was deleted alone."""
    deleted = [row for row in others if row.is_deleted]
    if not deleted:
        return None
    row = min(deleted, key=lambda row: row.without)
    return CheckRow(row.without, f'"{row.name}"{f" ({row.place})" if row.place else ""}')
