"""What the removal of parts says of a response: labels, lists in terminals and on pages, contrasts, the check."""

import copy
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from captum_iba._reading.change_sentences import change_sentence
from captum_iba._reading.prompt_sentences import part_check
from captum_iba._reading.removal_check import PromptCheck
from captum_iba._reading.rows import RAISES_ALONE, SPEAKS_AGAINST
from captum_iba._reading.wording import format_probability
from captum_iba.text import GenerationAttribution, GenerationExplainer
from captum_iba.text.prompt_check import check_by_removal, rerank_by_removal, with_check_by_removal
from captum_iba.text.prompt_part_removal import CachedPromptRemoval
from captum_iba.visualization import generation_page
from captum_iba.visualization.generation_page import asked

PROMPT = "the film was not good . a dull plot !"
RESPONSE = "a bad film"
QUICK = {"n_steps": 4}


@pytest.fixture
def explainer(llama, wordpiece):
    return GenerationExplainer(llama, wordpiece)


@pytest.fixture
def result(explainer):
    return explainer.explain(PROMPT, RESPONSE, **QUICK)


def with_effects(result, alone, after=None):
    """The result with the effects of its first parts, and without any of the others."""
    after = alone if after is None else after
    rows = [*zip(alone, after, strict=True), *[(None, None)] * (len(result.parts) - len(alone))]
    parts = [
        replace(part, effect=None if b is None else (a + b) / 2, effect_alone=a, bits=(20 - i) * part.unneeded_bits)
        for i, (part, (a, b)) in enumerate(zip(result.parts, rows, strict=True))
    ]
    return replace(result, parts=tuple(parts), check=None)


def rows_of(page):
    """The text, probability without it, bar, and place and label of each part in the first list of a page."""
    first = re.search(r'<table class="words.*?</table>', page, re.DOTALL)[0]
    pattern = r'<tr><th scope="row"><bdi>(.*?)</bdi> <span class="place">(.*?)</span>.*?width:(.*?)%"></i>(.*?)</tr>'
    found = re.findall(pattern, first)
    return [(text, "".join(re.findall("<b>(.*?)</b>", rest)), width, note) for text, note, width, rest in found]


def without_alone(result, part):
    """The probability per token without a part alone."""
    return "" if part.effect_alone is None else format_probability(result.probability * np.exp(-part.effect_alone))


@pytest.mark.parametrize(
    ("alone", "after", "label"),
    [
        (-0.0029, -4.17, ""),  # "speaks against it" stood beside a number that does not change
        (-1.11, -0.376, SPEAKS_AGAINST),
        (-1.11, 0.376, SPEAKS_AGAINST),
        (-0.24, 0.10, SPEAKS_AGAINST),
        (0.24, -0.50, ""),  # its bar is solid
        (-0.04, 3.93, ""),  # its bar is hatched
        (3.93, -0.04, ""),
        (0.5, 0.4, ""),
        (-0.09, 0.11, ""),  # each second part had a label
        (0.01, -0.03, ""),  # a neutral sentence spoke against the response
        (-1.5, None, SPEAKS_AGAINST),
    ],
)
def test_one_rule_says_what_two_removals_of_a_part_mean(result, alone, after, label):
    one = with_effects(result, [2.0, alone], [2.0, after])
    part = one.parts[1]
    assert part.label == label and part.speaks_against == (label == SPEAKS_AGAINST)
    if after is None:
        assert part.effect_after is None
        return
    assert part.effect_after == pytest.approx(after)
    length = max(0.0, alone, after)
    assert part.bar == pytest.approx((length, min(1, max(0, alone) / length) if length else 1.0))
    assert (one.bars[1] > 0) == (one.importance[1] > 0)  # the response does not need what raises it alone
    content = json.loads(one.to_json())["parts"][1]
    assert content["label"] == label and content["effect_after"] == pytest.approx(after)
    without = without_alone(one, part)
    suffix = f" · {label}" if label else ""
    for shown, numbers in ((str(one), [without]), (one.to_text(details=True), [without, f"{one.shares[1]:.1%}"])):
        (line,) = [line for line in shown.splitlines() if line.endswith(f"  {part.text}{suffix}")]
        assert re.findall(r"\S*%", line) == numbers
    page = generation_page(one)
    (row,) = [row for row in rows_of(page) if row[0] == part.text]
    assert row[1] == without and row[3] == label
    assert (f"<dt>{label}</dt>" in page) == bool(label)
    assert page.count(' against" title=') == (label == SPEAKS_AGAINST)
    assert GenerationAttribution.from_dict(one.to_dict()) == one


def test_a_part_that_was_removed_alone_has_the_label_of_that(result):
    one = with_effects(result, [2.0, -1.5], [2.0, None])
    assert one.parts[1].effect_after is None and one.parts[1].speaks_against
    assert one.parts[1].known_effect == -1.5
    assert replace(one.parts[1], effect=-1.0, effect_alone=None).label == ""


def test_a_part_that_only_a_check_removed_is_listed_with_its_number(explainer):
    """The word with the largest effect of 36 stood at the end of the list, without its nats."""
    result = explainer.explain(PROMPT, RESPONSE, rerank=2, check=True, **QUICK)
    removal = explainer.removal(PROMPT, RESPONSE)
    n_parts = len(result.parts)
    rows = torch.cat([torch.ones(1, n_parts, dtype=torch.bool), ~torch.eye(n_parts, dtype=torch.bool)])
    whole, *without = removal(rows).tolist()
    assert [part.effect_alone for part in result.parts] == pytest.approx([whole - one for one in without], abs=1e-5)
    assert sum(part.effect is None for part in result.parts) == n_parts - 2
    unchecked = explainer.explain(PROMPT, RESPONSE, rerank=2, **QUICK)
    assert sum(part.effect_alone is None for part in unchecked.parts) == n_parts - 2

    # film, good and plot were measured both ways; "not" lowers it by less than the least of these alone, "a" by more.
    alone = [0.3, 0.6, 0.25, 0.1, 0.2, -0.7, 1.5, -0.29, 0.35, -0.31]
    after = [0.3, 0.6, None, None, None, -0.5, None, None, None, None]
    one = with_effects(result, alone, after)
    texts = [part.text for part in one.parts]
    expected = [texts[i] for i in (6, 1, 8, 0, 5, 9)]
    assert [part.text for part, _ in one.listed][:4] == expected[:4]
    assert [part.text for part, _ in one.listed if (part.known_effect or 0) < 0] == [texts[i] for i in (5, 9, 7)]
    printed, page = one.to_text(details=True), generation_page(one)
    for i in (6, 9, 5):
        assert f"{without_alone(one, one.parts[i]):>10}  {one.shares[i]:11.1%}  " in printed
    assert [(text, number) for text, number, *_ in rows_of(page)] == [
        (part.text, without_alone(one, part)) for part, _ in one.listed
    ]
    assert not any("list does not show" in sentence for sentence in one.sentences)


def test_a_part_without_which_the_response_is_more_probable_is_not_needed(result):
    """A sentence without which 40.5% became 56.2% led the list with 1.51 nats: 3.35 of these without the others."""
    one = with_effects(result, [0.4, -0.33], [0.5, 3.35])
    part = one.parts[1]
    assert part.effect == pytest.approx(1.51) and part.known_effect == pytest.approx(-0.33)
    assert part.label == SPEAKS_AGAINST and one.bars[1] == 0 < one.bars[0]
    assert one.ranked[0] is one.parts[0] and one.importance[1] == 0
    assert one.estimated_effects[1] == pytest.approx(1.51)  # sums predict removals of several parts


def test_every_part_that_was_measured_and_stands_out_is_listed_in_one_order(explainer):
    prompt = " ".join(["the film was good and not bad"] * 3)
    result = explainer.explain(prompt, RESPONSE, **QUICK)
    effects = [-3.0, -3.18, -2.03, 0.0, 0.01, 0.001] + [0.5] * 8
    one = with_effects(result, effects)
    assert len(one.parts) > 15
    shown = [part.effect for part, _ in one.listed if part.effect is not None]
    # Of few all are listed, of more than eight those that stand out.
    assert sorted(shown) == sorted(effects[:3] + effects[6:]) and shown[-3:] == [-3.18, -3.0, -2.03]
    few = [part.effect for part, _ in with_effects(result, effects[:7]).listed if part.effect is not None]
    assert sorted(few) == sorted(effects[:7])
    rows = rows_of(generation_page(one))
    lines = str(one).split("\nwithout it")[1].splitlines()[1:]
    printed = [line.split()[0] for line in lines if line.strip() not in ("other part", "other parts")]
    listed = [without_alone(one, part) for part, _ in one.listed if part.effect is not None]
    assert printed[: len(listed)] == listed == [number for _, number, *_ in rows if number]
    assert str(one).count(" · speaks against it") == 3
    assert sum("speaks against it" in note for *_, note in rows) == 3
    assert [width for *_, width, _ in rows][-3:] == ["0.0"] * 3


def test_the_parts_that_are_not_listed_are_counted(result):
    one = with_effects(result, [2.0, 0.5])
    bits = [part.bits for part in one.parts[:4]] + [100 * one.parts[4].unneeded_bits]
    bits += [part.unneeded_bits for part in one.parts[5:]]
    one = replace(one, parts=tuple(replace(part, bits=b) for part, b in zip(one.parts, bits, strict=True)))
    listed = [part for part, _ in one.listed]
    above = [i for i, part in enumerate(one.parts) if part not in listed and one.shares[i] > 0]
    at_floor = len(one.parts) - len(listed) - len(above)
    assert above and at_floor > 1
    plural = "s" * (len(above) > 1)
    said = f"{one.shares[above].sum():.1%} of the bits in {len(above)} other part{plural}"
    said += f"; {at_floor} more are at the floor"
    assert one.unlisted(listed) == said and said not in str(one)
    assert f"\n{said}\n" in one.to_text(details=True) and f"Not listed: {said}." in generation_page(one)
    assert one.unlisted(one.parts) == "" and one.unlisted(one.parts[:-1]) == "1 other part is at the floor"
    assert one.unlisted(one.parts[:-2]) == "2 other parts are at the floor"


def test_the_list_has_the_probability_without_each_part_and_those_above(explainer):
    result = explainer.explain(PROMPT, RESPONSE, check=True, **QUICK)
    removal, order = explainer.removal(PROMPT, RESPONSE), (-result.scores).argsort().tolist()
    n_leading = len(result.leading)
    kept = torch.ones(n_leading, len(result.parts), dtype=torch.bool)
    for count, row in enumerate(kept, 1):
        row[order[:count]] = False
    expected = removal(kept).exp().tolist()[:8]
    assert n_leading > 1 and list(result.check.without_first) == pytest.approx(expected, abs=1e-6)
    assert [row.without_so_far for row in result.rows][: len(expected)] == list(result.check.without_first)
    assert "without it  and those above" in str(result) and "the same when the parts above it" in str(result)
    assert GenerationAttribution.from_dict(json.loads(result.to_json())) == result
    unchecked = explainer.explain(PROMPT, RESPONSE, **QUICK)
    assert "and those above" not in str(unchecked).lower()


def test_effects_alone_are_no_estimates(result):
    one = with_effects(result, [2.0, 0.5, 1.0, -0.5], [1.0, 0.5, None, None])
    assert one.estimated_effects[:4].tolist() == [1.5, 0.5, 1.0, -0.5]
    assert one.importance[:4] == pytest.approx([1, 1 / 3, 2 / 3, 0])
    rate = 3.0 / one.shares[:4].sum()
    assert one.estimated_effects[4:] == pytest.approx(rate * one.shares[4:])
    assert [part.known_effect for part in one.ranked[:3]] == [1.5, 1.0, 0.5]
    assert one.scores[3] == 0  # of what only the check removed, too, the rest is the last


def test_the_leading_parts_of_a_check_are_the_first_of_the_list(explainer):
    result = explainer.explain(PROMPT, RESPONSE, rerank=2, check=True, **QUICK)
    first = [part for part, _ in result.listed[: result.check.n_removed]]
    assert first == list(result.leading[: result.check.n_removed])
    kept = torch.tensor([[part not in first for part in result.parts]])
    without = float(explainer.removal(PROMPT, RESPONSE)(kept).exp())
    assert result.check.without_leading == pytest.approx(without, rel=1e-4)


def test_the_effects_of_a_contrast_are_of_the_log_odds(llama, wordpiece):
    """By the log-probability of the choice, no part speaks against one that the model is sure of."""
    sure = copy.deepcopy(llama)
    sure.lm_head.weight.data *= 12
    read = wordpiece(PROMPT)["input_ids"]
    parts = GenerationExplainer(sure, wordpiece).read(PROMPT).parts

    def logits(removed):
        """Of the model itself: the response follows [CLS], what is left of the prompt, and [SEP]."""
        ids = [i for i, part in zip(read, parts, strict=True) if part not in removed]
        with torch.no_grad():
            return sure(torch.tensor([ids])).logits[0, -1]

    def log_odds(removed):
        return float(logits(removed)[of] - logits(removed)[other])

    # The model is sure of the choice, and surer without the first word.
    of_prompt = logits(())
    surer = logits((0,)) - of_prompt
    words = [i for i in range(len(wordpiece.vocab)) if wordpiece.convert_ids_to_tokens(i).isalpha()]
    sure_of = [(a, b) for a in words for b in words if of_prompt[a] - of_prompt[b] > 15]
    of, other = max(sure_of, key=lambda pair: float(surer[pair[0]] - surer[pair[1]]))
    names = wordpiece.convert_ids_to_tokens([of, other])
    explained = GenerationExplainer(sure, wordpiece).explain(PROMPT, names[0], contrast=names[1], check=True, **QUICK)
    whole = log_odds(())
    assert whole > 15 and explained.probability == pytest.approx(1, abs=1e-6) == explained.check.probability
    alone = [whole - log_odds((i,)) for i in range(len(explained.parts))]
    assert [part.effect_alone for part in explained.parts] == pytest.approx(alone, abs=1e-3)
    measured = [i for i, part in enumerate(explained.parts) if part.effect is not None]
    for i in measured:
        others = [j for j in measured if j != i]
        after = log_odds(others) - log_odds(measured)
        assert explained.parts[i].effect_after == pytest.approx(after, abs=1e-3)
    assert alone[0] < -1  # of the log-probability of the choice, which is 0 with and without it, it was 0.00
    n_deleted = explained.check.n_removed
    leading = (-explained.scores).argsort()[:n_deleted].tolist()
    found = torch.tensor(log_odds(leading)).sigmoid()
    assert explained.check.without_leading == pytest.approx(float(found), abs=1e-4)
    assert "decrease in the log-odds of the choice" in str(explained)
    rows = {row.name: row.without for row in explained.rows}
    for i in measured:
        expected = float(torch.tensor(log_odds([i])).sigmoid())
        assert rows[explained.parts[i].text.strip()] == pytest.approx(expected, abs=1e-4)
    page = generation_page(explained)
    assert "decrease in the log-odds of the choice" in " ".join(page.split()) and "log-probability" not in page
    # 10% of a probability of 95% is impossible: of a choice it is the odds.
    against = with_effects(explained, [0.5, -0.4], [0.5, -0.4])
    assert "without this part the odds of the choice are more than 10% higher" in str(against)
    for of in (against, replace(against, contrast=None)):
        said = generation_page(of)
        is_choice = "ithout this part the odds of the choice are more than 10% higher" in said
        assert is_choice == (of is against) != ("by more than 10% of its probability" in said)
    assert f"of the choice, rather than “<bdi>{names[1]}</bdi>”, 100.0%" in page


def test_a_check_is_a_table_of_probabilities(explainer):
    result = explainer.explain(PROMPT, RESPONSE, check=True, **QUICK)
    check = replace(result.check, without_least=0.068, without_random=0.083, probability=0.055)
    one = replace(result, check=check)
    for probability, what in ((0.055, "with the whole prompt"), (0.068, "with the fewest bits"), (0.083, "at random")):
        (line,) = [line for line in str(one).splitlines() if what in line]
        assert line.startswith(f"{probability:10.1%}  ")
        assert re.search(
            f'<b>{probability:.1%}</b></td> <td>.*?</td> <th scope="row">[^<]*{what}', generation_page(one)
        )
    assert "Check of" not in str(replace(result, check=None))
    through_the_mask = "With the information in the bits alone the probability per token is "
    assert any(sentence.startswith(through_the_mask) for sentence in replace(result, check=None).sentences)


def test_parts_with_the_fewest_bits_that_raise_the_probability_are_named(explainer):
    """Without two words of the fewest bits 2.3% became 29.4%, and nothing was said."""
    result = explainer.explain(PROMPT, RESPONSE, check=True, **QUICK)
    *others, least = np.lexsort((-result.bits, -result.shares)).tolist()
    check = replace(result.check, n_removed=1, probability=0.023, without_random=0.03, least=(least,))
    # One part leads, and the others hardly matter alone; that with the fewest bits as below, or it was not removed.
    parts = [replace(part, effect=None, effect_alone=0.02) for part in result.parts]
    parts[others[0]] = replace(parts[others[0]], effect=2.0, effect_alone=2.0)
    # Of parts that were removed the list says it.
    for effect, is_against in ((None, True), (-0.5, False), (0.048, False)):
        parts[least] = replace(parts[least], effect_alone=effect)
        for without, is_told in ((0.294, True), (0.1, False)):
            of_check = replace(check, without_least=without, leading=(others[0],))
            one = replace(result, probability=0.023, parts=tuple(parts), check=of_check)
            assert len(one.leading) == 1
            said = [sentence for sentence in one.sentences if "may speak against the response" in sentence]
            assert bool(said) == (is_told and is_against) == ("rises to 29.4%" in str(one))
            assert all(f'"{parts[least].text.strip()}"' in sentence for sentence in said)


def test_a_choice_between_responses_of_different_lengths_is_told_as_wholes(explainer):
    """61.1% was called the probability of a choice that the model makes the other way 1,500 times as often."""
    result = explainer.explain(PROMPT, "a bad film", contrast="good", **QUICK)
    removals = [explainer.removal(PROMPT, response) for response in ("a bad film", "good")]
    whole = torch.ones(1, len(result.parts), dtype=torch.bool)
    n_tokens = tuple(len(removal.response) for removal in removals)
    assert (len(result.tokens), result.contrast_tokens) == n_tokens and n_tokens[0] > n_tokens[1]
    totals = [float(removal(whole)) * n for removal, n in zip(removals, n_tokens, strict=True)]
    choice = 1 / (1 + math.exp(totals[1] - totals[0]))
    said = f"the explained response has {format_probability(choice)} of the"
    assert result.sentences[0].startswith(
        "Two measures disagree: per token the model prefers the explained response, and"
    )
    assert choice < 0.5 < result.probability
    assert said in result.sentences[0] and f"over {n_tokens[0]} and {n_tokens[1]} tokens," in result.sentences[0]
    checked = explainer.explain(PROMPT, "a bad film", contrast="good", check=True, **QUICK)
    kept = torch.ones(1, len(checked.parts), dtype=torch.bool)
    kept[0, (-checked.scores).argsort()[: len(checked.leading)].tolist()] = False
    totals = [float(removal(kept)) * n for removal, n in zip(removals, n_tokens, strict=True)]
    without = 1 / (1 + math.exp(totals[1] - totals[0]))
    assert checked.check.whole_without_leading == pytest.approx(without, abs=1e-5)
    assert f"both, and {format_probability(without)} without the leading part" in checked.answer
    # Directly below the probability, and on the page.
    assert str(result).splitlines()[3] == result.sentences[0] and said in generation_page(result)
    same = explainer.explain(PROMPT, "bad", contrast="good", **QUICK)
    assert "By the sums" not in str(same)
    # Of responses of as many tokens, too: most of them are often the same, and the mean hides what differs.
    alike = explainer.explain(PROMPT, "a bad film", contrast="a good film", check=True, **QUICK)
    per_token, n = alike.check.probability, alike.contrast_tokens
    odds = (per_token / (1 - per_token)) ** n
    assert n > 1 and "of the choice per token" in str(alike)
    assert f"By the sums of log-probabilities, over {n} tokens, " in alike.answer
    assert f"has {odds / (1 + odds):.1%} of the" in str(alike)
    assert GenerationAttribution.from_dict(json.loads(result.to_json())) == result


@pytest.mark.parametrize(
    ("probability", "masked", "closed", "said"),
    [
        (
            0.023,
            0.025,
            0.029,
            "With all parts masked the probability per token is 2.9%, no less than with",
        ),
        (0.5, 0.2, 0.1, "The mask removed too much: with the information in the bits alone the probability per token"),
        (0.5, 0.45, 0.1, "alone the probability per token is 45.0%, and with none of it 10.0%."),
        (
            0.5,
            0.42,
            0.4,
            "The bits keep little of what the prompt adds: they rank its parts, but they do not explain the",
        ),
    ],
)
def test_bits_that_do_not_explain_the_response_are_told(explainer, probability, masked, closed, said):
    result = explainer.explain(PROMPT, RESPONSE, **QUICK)
    one = replace(result, probability=probability, masked_probability=masked, closed_probability=closed)
    assert said in " ".join(one.sentences[-2:]) and said in one.to_text(details=True) and said in generation_page(one)
    # Beside bits, unless it says that the prompt is not needed, or that no check has tried what the mask lost.
    assert (said in str(one)) == said.startswith(("With all parts", "The mask"))


def test_the_list_of_a_single_token_says_what_it_is(explainer):
    result = explainer.explain(PROMPT, RESPONSE, per_token=True, check=True, **QUICK)
    page = generation_page(result)
    for token in result.tokens:
        heading = f"<h2>The parts that <bdi>{token.text.strip()}</bdi> needs most</h2>"
        probability = f"Probability of this token {token.probability:.1%}; bits only, not checked by removal."
        assert re.search(rf"{re.escape(heading)}\s*<p class=\"caption\">{re.escape(probability)}</p>", page)
    assert "bits only" not in generation_page(explainer.explain(PROMPT, RESPONSE, **QUICK))


def test_json_has_shares_ranks_and_sentences(explainer):
    result = explainer.explain(PROMPT, RESPONSE, check=True, **QUICK)
    content = json.loads(result.to_json())
    assert content["sentences"] == result.sentences and result.sentences[0] == result.answer
    assert result.answer.removeprefix("Not confirmed: w").startswith(('Without "', 'ithout "')) and result.sentences[
        1
    ].startswith("Check of the leading part")
    ranked = sorted((part for part in content["parts"] if part["rank"]), key=lambda part: part["rank"])
    assert [part["text"] for part in ranked] == [part.text for part in result.ranked]
    assert [part["share"] for part in content["parts"]] == result.shares.tolist()
    assert [part["speaks_against"] for part in content["parts"]] == [
        part.speaks_against and part not in result.leading for part in result.parts
    ]
    listed = [part.text for part, _ in result.listed]  # the order of the list
    assert [part["text"] for part in ranked if part["text"] in listed] == [
        text for text in listed if text in {part["text"] for part in ranked}
    ]
    assert GenerationAttribution.from_dict(content) == result
    with pytest.raises(ValueError, match="content has the format 'captum-iba generation/1', expected"):
        GenerationAttribution.from_dict({**content, "format": "captum-iba generation/1"})


def test_the_title_of_a_conversation_has_no_template(llama, wordpiece):
    tokenizer = copy.deepcopy(wordpiece)
    tokenizer.chat_template = "{% for m in messages %}<u>{{ m['content'] }}<>{% endfor %}:"
    chat = [("system", "dull"), ("user", "the film was"), ("assistant", "good ."), ("user", "a  plot")]
    messages = [{"role": role, "content": content} for role, content in chat]
    for granularity in ("word", "token", "sentence"):
        result = GenerationExplainer(llama, tokenizer).explain(messages, "bad", granularity=granularity, **QUICK)
        assert asked(result) == "the film was … good . … a plot"


def test_the_space_before_a_token_makes_no_gap(result):
    parts = [replace(part, text=f" {part.text}" if i else part.text) for i, part in enumerate(result.parts)]
    parts[-1] = replace(parts[-1], text=" ")
    one = replace(
        with_effects(replace(result, parts=tuple(parts)), [1.0] * len(parts)), response=" a film", span=(0, 2)
    )
    listed = [re.split("[█▒] ", line)[-1].strip() for line in str(one).splitlines()]
    assert "film" in listed and any(name.startswith("␣") for name in listed)
    assert str(one).startswith("LlamaForCausalLM: a film\nexplained of it: a\n")
    assert {text for text, *_ in rows_of(generation_page(one))} == {*(part.text.strip() for part in parts[:-1]), "␣"}


def test_leading_parts_are_underlined_and_pale_where_they_are_not_confirmed(explainer):
    result = explainer.explain(PROMPT, RESPONSE, check=True, **QUICK)
    check = result.check
    sure = replace(result, check=replace(check, without_leading=0.0, lowest_random=None))
    doubted = replace(result, check=replace(check, without_leading=check.probability))
    assert (sure.verdict, doubted.verdict) == ("weakly confirmed", "not confirmed")
    leading = [part.text.strip() for part in result.leading]
    for one, is_pale in ((sure, False), (doubted, True)):
        page = generation_page(one)
        underlined = re.findall(r'class="w (q\d+) lead[^"]*"[^>]*>(.*?)<span class="sr">', page)
        assert sorted(text.strip() for _, text in underlined) == sorted(leading)
        assert ('<table class="words pale">' in page, "░" in str(one)) == (is_pale, is_pale)
        assert max(int(color[1:]) for color, _ in underlined) == (7 if is_pale else 20)


class KnownRemoval:
    """Log-probabilities of the kept parts by a function of their booleans, as a removal gives them."""

    def __init__(self, log_probability):
        self.log_probability, self.passes = log_probability, 0

    def __call__(self, kept):
        self.passes += len(kept)
        return self.log_probability(kept.double())

    @staticmethod
    def probabilities(values):
        return values.exp()


def measured_by(result, log_probability):
    """The result with the effects and the check of a known function of its parts."""
    removal = KnownRemoval(log_probability)
    removal = CachedPromptRemoval(removal)
    one = rerank_by_removal(removal, with_effects(result, []), len(result.parts))
    return replace(one, check=check_by_removal(removal, one))


def test_a_part_that_adds_nothing_beside_the_others_does_not_lead(result):
    """ "is" led behind "white.": its removal changes nothing alone, and raised the probability at its step."""

    def log_probability(kept):
        # The first part decides; the second matters only where everything else is gone.
        alone = kept[:, 1] * (kept.sum(1) <= 1)
        return -0.5 - 4 * (1 - kept[:, 0]) - 0.2 * (1 - kept[:, 2]) + 2 * alone

    one = measured_by(result, log_probability)
    assert one.parts[1].effect > 0.9 and one.parts[1].effect_alone == pytest.approx(0)
    assert one.check.leading == (0,) and one.leading == (one.parts[0],)
    assert one.check.without_first == pytest.approx([np.exp(-4.5)])
    assert one.check.without_leading == pytest.approx(np.exp(-4.5))
    assert GenerationAttribution.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    # What matters only where everything else is gone has no bar: the leading part is the darkest.
    bars = {row.number: row.importance for row in one.rows}
    assert one.rows[0].number == 0 and bars[0] == 1 and not bars.get(1)


def test_leading_parts_are_in_the_order_of_their_removal(result):
    """Two copies of a fact: either is enough, and the third part matters little beside them."""

    def log_probability(kept):
        copies = 1 - (1 - kept[:, 3]) * (1 - kept[:, 5])
        return -0.2 - 1.0 * (1 - copies) - 0.6 * (1 - kept[:, 1])

    one = measured_by(result, log_probability)
    assert one.check.leading == (1, 3, 5)
    expected = [np.exp(-0.8), np.exp(-0.8), np.exp(-1.8)]
    assert one.check.without_first == pytest.approx(expected)
    assert [one.parts.index(part) for part in one.ranked][:3] == [1, 3, 5]
    assert np.argsort(-one.scores)[:3].tolist() == [1, 3, 5]


def test_parts_that_are_needed_only_together_lead(result):
    """ "No part speaks for it" stood above a prompt without which 0.7% became 0.02%."""

    def log_probability(kept):
        none = (kept[:, :2].sum(1) == 0).double()
        return -1.0 + 0.1 * (1 - kept[:, 0]) + 0.1 * (1 - kept[:, 1]) - 3 * none

    one = measured_by(result, log_probability)
    assert max(part.known_effect for part in one.parts) <= 0
    assert set(one.check.leading) == {0, 1} and "No part speaks for it." not in str(one)
    assert f"falls from {np.exp(-1):.1%} to {np.exp(-3.8):.1%}" in one.answer and one.verdict == "confirmed"
    assert one.rows[0].share_alone == 0 and one.rows[0].relation == ""


def test_print_has_a_line_for_each_token_with_bits_of_its_own(explainer):
    one = explainer.explain(PROMPT, RESPONSE, per_token=True, rerank=0, **QUICK)
    lines = [line for line in str(one).splitlines() if ", most bits: " in line]
    assert [line.split(" (")[0] for line in lines] == [token.text.strip() for token in one.tokens]
    for line, token in zip(lines, one.tokens, strict=True):
        assert f"({format_probability(token.probability)})" in line
        shares = one.shares_of(np.array(token.bits))
        best = one.parts[int(shares.argmax())].text.strip()
        assert f"most bits: {best} {shares.max():.1%}" in line
    assert "Bits of single tokens have no sign, and are not checked by removal." in str(one)


def test_a_choice_says_which_response_the_model_prefers(explainer):
    one = explainer.explain(PROMPT, "a", contrast="b", rerank=0, **QUICK)
    other = replace(one, probability=1 - one.probability)
    low, high = sorted([one, other], key=lambda item: item.probability)
    assert low.answer.startswith(f'The model prefers "b" ({1 - low.probability:.1%}).')
    assert "The model prefers" not in high.answer


def test_a_part_that_matters_alone_is_measured_with_the_others(result):
    """ "Rome." was the second strongest alone, had the ninth most bits, and could not lead."""

    def log_probability(kept):
        return -0.5 - 0.3 * (1 - kept[:, 0]) - 2.0 * (1 - kept[:, 3])

    removal = CachedPromptRemoval(KnownRemoval(log_probability))
    by_bits = rerank_by_removal(removal, with_effects(result, []), 2)
    assert [i for i, part in enumerate(by_bits.parts) if part.effect is not None] == [0, 1]
    one = with_check_by_removal(removal, by_bits, 2)
    assert one.parts[3].effect == pytest.approx(2.0) and one.check.leading == (3,)
    assert all(part.effect_alone is not None for part in one.parts)  # of those that were removed alone, too
    # Each set of parts ran once.
    assert removal.removal.passes == len(removal._known)


def test_more_parts_are_measured_where_the_first_ones_leave_most_of_the_probability(result):
    """Each of all parts but the last is enough."""
    n_parts = len(result.parts)

    def log_probability(kept):
        return -0.1 - 3.0 * (kept[:, : n_parts - 1].sum(1) == 0)

    removal = CachedPromptRemoval(KnownRemoval(log_probability))
    one = with_check_by_removal(removal, rerank_by_removal(removal, with_effects(result, []), 2), 2)
    assert sorted(one.check.leading) == list(range(n_parts - 1)) == sorted(i for i in one._leading)
    assert one.check.without_leading == pytest.approx(np.exp(-3.1))


def test_more_parts_are_measured_where_all_measured_ones_lead(result):
    def log_probability(kept):
        return -0.1 - 0.6 * (1 - kept[:, :3]).sum(1)

    removal = CachedPromptRemoval(KnownRemoval(log_probability))
    one = with_check_by_removal(removal, rerank_by_removal(removal, with_effects(result, []), 2), 2)
    assert sorted(one.check.leading) == [0, 1, 2]


def test_without_a_check_no_part_leads_that_raises_the_probability_alone(result):
    one = with_effects(result, [0.5, -0.2], [0.5, 1.4])
    leading = one.leading
    assert one.parts[1].effect == pytest.approx(0.6) and leading[0] == one.parts[0] and one.parts[1] not in leading


def test_leading_parts_stay_in_the_order_of_their_removal(result):
    """One that raises the probability alone, and lowers it after the first, stood behind the third."""

    def log_probability(kept):
        first, second, third = (1 - kept[:, i] for i in (0, 1, 2))
        return -0.1 - 0.5 * first + 0.3 * second - 1.0 * first * second - 1.5 * third * first * second

    one = measured_by(result, log_probability)
    assert one.parts[1].effect_alone < -0.2 and one.check.leading == (0, 1, 2)
    assert [row.number for row in one.rows][: len(one.check.leading)] == list(one.check.leading)
    so_far = [row.without_so_far for row in one.rows][: len(one.check.leading)]
    assert so_far == pytest.approx(list(one.check.without_first)) and so_far == sorted(so_far, reverse=True)
    assert one.rows[1].relation == "raises it alone" == one.to_dict()["parts"][1]["label"]
    assert "speaks against it" not in str(one).partition("other parts")[0]


def test_a_choice_is_not_given_as_much_without_the_prompt_where_the_whole_responses_differ(explainer):
    """Of long responses with one other word every mean is near 50%: "nearly as much", "cancel out"."""
    result = explainer.explain(PROMPT, "a bad film", contrast="a good film", **QUICK)
    told = "With all parts masked the probability of the choice"
    for probability, closed, n_tokens, is_told in (
        (0.517, 0.482, 6, False),  # the other response is preferred without the prompt
        (0.56, 0.54, 6, False),  # 81% and 72% of the wholes
        (0.56, 0.559, 6, True),
        (0.56, 0.54, 1, True),
    ):
        tokens = tuple(replace(token, explained=i < n_tokens) for i, token in enumerate(result.tokens))
        one = replace(
            result,
            probability=probability,
            closed_probability=closed,
            masked_probability=probability,
            contrast_tokens=n_tokens,
            tokens=tokens,
        )
        assert (told in str(one)) is is_told and ("unexplained" in one.to_dict()["findings"]) is is_told


def test_the_parts_that_are_not_in_the_list_are_told_with_their_probabilities(explainer):
    """ "which lower it by less" was said of parts that lower it more than those in the list."""
    result = explainer.explain(" ".join(["the film was good and not bad"] * 3), RESPONSE, check=True, **QUICK)
    listed = [part for part, _ in result.listed]
    cut = [without_alone(result, part) for part in result.parts if part not in listed]
    assert cut, "some are left out"
    (said,) = [sentence for sentence in str(result).splitlines() if "Not in the list: " in sentence]
    numbers = sorted(cut, key=lambda chance: float(chance.rstrip("%")))
    assert f"Not in the list: {len(cut)} of the {len(result.parts)} parts" in said
    assert numbers[0] in said and numbers[-1] in said and "were not removed" not in said


def test_a_flag_for_a_system_message_that_is_not_there_is_warned_of(explainer):
    with pytest.warns(UserWarning, match="include_system has no effect: the prompt has no system message"):
        explainer.explain(PROMPT, RESPONSE, include_system=True, **QUICK)


class KnownChoice(KnownRemoval):
    """Log-odds of a choice by a function of the parts."""

    @staticmethod
    def probabilities(values):
        return values.sigmoid()


def test_the_parts_that_change_a_choice_are_told(explainer):
    """The table had 37.6% of a choice, and no sentence said that one word is enough."""
    weights = torch.tensor([3.0, 1.5, 1.4] + [0.0] * 20)

    def log_odds(kept):
        return 2.0 - (1 - kept.float()) @ weights[: kept.shape[1]]

    result = explainer.explain(PROMPT, "a", contrast="b", **QUICK)
    one = replace(result, probability=1 / (1 + math.exp(-2.0)))
    one = with_check_by_removal(CachedPromptRemoval(KnownChoice(log_odds)), one, 8)
    change = one.check.change
    assert change.parts == (0,) and change.alone == ((0, "b"),) and change.decision == "b"
    assert change.probability == pytest.approx(1 / (1 + math.exp(-1.0)))
    name = one.parts[0].text.strip()
    told = replace(one, check=replace(one.check, leading=(0, 1)))
    assert change_sentence(part_check(told)) == f'Without "{name}" alone the model prefers "b" (73.1%).'
    assert f'Without "{name}" alone the model prefers "b" (73.1%).' in told.answer
    by_two = replace(one, check=replace(one.check, leading=(0, 1, 2), change=replace(change, parts=(1, 2))))
    fewest, alone = change_sentence(part_check(by_two)).split(" Without ")
    assert fewest.startswith("The fewest parts found that change the choice: ") and fewest.endswith(
        '("b" 73.1%).'.replace('"', "")
    )
    assert alone == f'"{name}" alone, the choice changes, too.'
    given = explainer.explain(PROMPT, RESPONSE, check=True, **QUICK)
    assert given.check is None or given.check.change is None


def test_no_leading_part_raises_a_probability_that_is_printed_alike(result):
    """ "100.0% · raises it alone" stood below a probability of 100.0%."""
    parts = tuple(replace(part, effect_alone=-0.2) for part in result.parts)
    sure, open_ = (replace(result, contrast="b", probability=chance, parts=parts) for chance in (0.99999, 0.9))
    assert all(part.speaks_against for part in parts)
    for one, label in ((sure, ""), (open_, RAISES_ALONE)):
        leads = {one.parts.index(part) for part in one.leading}
        assert leads and {row.relation for row in one.rows if row.number in leads} == {label}
        assert {part["label"] for i, part in enumerate(one.to_dict()["parts"]) if i in leads} == {label}


def test_the_sentences_name_the_span(explainer):
    """77.6% of "nine" was quoted as that of the whole response."""
    whole = explainer.explain(PROMPT, RESPONSE, check=True, **QUICK)
    assert whole.measured == "the probability per token"
    words = RESPONSE.split()
    part = explainer.explain(PROMPT, RESPONSE, span=words[-1], check=True, **QUICK)
    assert part.measured.startswith("the probability") and part.measured.endswith(f' of "{words[-1]}"')
    for shown in (str(part), str(generation_page([part]))):
        assert part.measured.removeprefix("the ") in shown.replace("&#34;", '"').replace("&quot;", '"')


def test_what_the_first_parts_do_is_told_where_most_lead(result):
    """Two of four sentences took 70.4% to 9.2%, three led, and nothing was compared."""
    n_parts = len(result.parts)
    leading = tuple(range(n_parts // 2 + 1))
    left = (0.3, *(0.08 - 0.01 * i for i in range(len(leading) - 1)))
    check = PromptCheck(len(leading), 0.7, left[-1], math.nan, math.nan, 0, leading=leading, without_first=left)
    one = replace(result, probability=0.7, check=check)
    assert "Not compared with others, because more than half of all parts lead" in one.answer
    assert "Without the first 2 leading parts it is 8.0%." in one.answer
    even = replace(one, check=replace(check, without_first=(0.69,) * (len(leading) - 1) + (left[-1],)))
    assert "Without the first" not in even.answer


def test_parts_that_take_a_quarter_of_the_probability_alone_are_listed(result):
    """Four words that lower it more alone than a leading one were not in the list: the longest bar was of 6 nats."""

    def log_probability(kept):
        removed = 1 - kept.float()
        return -0.2 - 8.0 * removed[:, 0] - 0.35 * removed[:, 1:].amax(1)

    one = measured_by(result, log_probability)
    listed = {row.number: row for row in one.rows}
    quarter = [i for i, part in enumerate(one.parts) if part.effect_alone is not None and part.effect_alone > 0.3]
    assert len(quarter) > 2 and {*quarter} <= listed.keys()


def test_a_prompt_that_lowers_the_response_is_part_of_the_answer(explainer):
    """The sentence that turns the reading of a choice was the last and smallest of a page."""
    result = explainer.explain(PROMPT, "a bad film", contrast="a good film", check=True, **QUICK)
    more = replace(result, probability=0.6, closed_probability=0.9, masked_probability=0.6)
    said = "With all parts masked the probability of the choice per token is 90.0%, more than with this prompt (60.0%)."
    assert f"{said} This prompt lowers it." in more.answer and "lowered" in more.findings
    assert str(more).count(said) == 1 and generation_page(more).count("This prompt lowers it.") == 1
    less = replace(more, closed_probability=0.3)
    assert "lowers it" not in less.answer and "lowered" not in less.findings


def test_a_leading_word_directly_before_the_response_is_told(explainer):
    """Without "is" a prompt that ends in "is" is no question any more."""
    result = explainer.explain("the film was not good", RESPONSE, check=True, **QUICK)
    last, said = len(result.parts) - 1, "stands directly before the response: without it other words may come next."
    leads = replace(result, check=replace(result.check, leading=(last,)))
    assert f'"good" {said}' in leads.answer
    assert said not in replace(result, check=replace(result.check, leading=(0,))).answer
    assert said not in replace(leads, granularity="sentence").answer
    assert said not in replace(leads, prompt=f"{result.prompt}<end>").answer


def test_a_choice_that_is_even_without_the_leading_parts_is_undecided(explainer):
    """49.9% was "the model prefers the other response"."""
    result = explainer.explain(PROMPT, "a bad film", contrast="a good film", check=True, **QUICK)
    whole = replace(result, probability=0.9)
    for without, said in ((0.499, "and the model is undecided"), (0.3, 'and the model prefers "a good film"')):
        assert said in replace(whole, check=replace(result.check, probability=0.9, without_leading=without)).answer


def test_a_leading_part_without_which_the_response_is_more_probable_is_told(explainer):
    """ "Without ... and the question "red" falls to 0.1%": without the question alone it rose from 3.6% to 32.4%."""
    result = explainer.explain(PROMPT, RESPONSE, check=True, **QUICK)
    parts = [replace(part, effect=0.1, effect_alone=0.02) for part in result.parts]
    parts[2] = replace(parts[2], effect_alone=-2.0)
    check = replace(result.check, leading=(0, 2), probability=0.04, without_leading=0.001)
    one = replace(result, parts=tuple(parts), probability=0.04, check=check)
    rises = f'Without "{one.parts[2].text.strip()}" alone it rises to 29.6%.'
    assert rises in one.answer and "None of them alone" not in one.answer
    others = replace(one, check=replace(check, leading=(0, 1)))
    assert "alone it rises" not in others.answer  # its label says it
    together = replace(one, parts=tuple(replace(part, effect_alone=-0.001) for part in one.parts))
    assert "None of them alone lowers the probability by 1% of its value." in together.answer


def test_a_part_that_changes_the_choice_to_the_explained_response_is_told(explainer):
    """The model preferred the other response, and no sentence said that one deletion turns it."""
    result = explainer.explain(PROMPT, "a bad film", contrast="a good film", check=True, **QUICK)
    parts = [replace(part, effect=0.1, effect_alone=0.02) for part in result.parts]
    parts[1] = replace(parts[1], effect_alone=-2.0)
    check = replace(result.check, leading=(0,), probability=0.3, without_leading=0.1)
    one = replace(result, parts=tuple(parts), probability=0.3, check=check)
    name = one.parts[1].text.strip()
    assert f'Without "{name}" alone it rises to 76.0%, and the model prefers "a bad film".' in one.answer


def test_a_quarter_of_a_mean_over_tokens_confirms(result):
    """77% were left of a response off the point, and it was "confirmed"."""
    parts = tuple(replace(part, effect=None, effect_alone=None) for part in result.parts)
    result = replace(result, parts=parts)
    check = PromptCheck(1, 0.6, 0.46, 0.6, 0.6, 10, leading=(0,))
    for left, said in ((0.46, "weakly confirmed"), (0.44, "confirmed")):
        one = replace(result, probability=0.6, check=replace(check, without_leading=left))
        assert one.verdict == said


def test_a_response_that_the_prompt_adds_little_to_says_so_first_and_is_pale(explainer):
    """A sentence that matters to no one was drawn as most needed, and what overturns it was the last line."""
    result = explainer.explain(PROMPT, RESPONSE, check=True, **QUICK)
    check = replace(result.check, leading=(0, 1), probability=0.5, without_leading=0.48, without_least=0.3)
    one = replace(result, probability=0.5, closed_probability=0.49, masked_probability=0.5, check=check)
    said = "With all parts masked the probability per token is 49.0%, nearly as much as with this prompt (50.0%)."
    assert one.answer.startswith(said) and str(one).count(said) == 1
    assert "█" not in str(one) and "pale bar" in one.legend()
    others = {"without_least": 0.5, "without_random": 0.5, "lowest_random": 0.5}
    confirmed = replace(one, check=replace(check, without_leading=0.1, **others))
    parts = tuple(replace(part, effect_alone=0.0) for part in one.parts)
    confirmed = replace(confirmed, parts=parts)
    assert confirmed.verdict == "confirmed" and not confirmed.answer.startswith("With all parts")


def test_leading_parts_that_raise_a_response_alone_are_told_with_their_numbers(explainer):
    """ "None of them alone lowers the probability" was said of parts without which it is two to four times as much."""
    result = explainer.explain(PROMPT, RESPONSE, check=True, **QUICK)
    parts = [replace(part, effect=0.1, effect_alone=-0.5) for part in result.parts]
    n_parts = len(parts)
    rest = tuple(range(2, n_parts))
    check = replace(result.check, leading=(0, 1), probability=0.02, without_leading=0.001, without_rest=0.64)
    one = replace(result, parts=tuple(parts), probability=0.02, check=check)
    assert "Each of them alone raises it, to 3.3% and 3.3%." in one.answer
    assert f"Without the {len(rest)} other parts it rises to 64.0%." in one.answer
