"""Other heads than that of a sequence classifier: what is explained, known values, errors, and planted cues."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from captum_iba import cli
from captum_iba.methods import attribute
from captum_iba.text import TextAttribution, TextExplainer
from captum_iba.text.head_targets import predicted_entities
from captum_iba.text.heads import END, START, TARGET_ROW, head_of_architectures
from captum_iba.visualization import terminal_text, token_page

from .conftest import LABELS, built

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))
import planted_heads

QUICK = {"n_steps": 2, "n_samples": 2}
TEXT = "the unbelievable film was good."


@pytest.fixture(scope="module")
def answers(wordpiece):
    return TextExplainer(built("BertForQuestionAnswering"), wordpiece)


@pytest.fixture(scope="module")
def masked(wordpiece):
    wordpiece.mask_token = "[MASK]"
    return TextExplainer(built("BertForMaskedLM"), wordpiece)


@pytest.fixture(scope="module")
def values(wordpiece):
    return TextExplainer(built("BertForSequenceClassification", num_labels=1), wordpiece)


def logits_of(explainer, *texts):
    with torch.no_grad():
        return explainer.model(**explainer.classifier.tokenizer(*texts, return_tensors="pt"))


def test_probability_of_a_word_is_that_of_its_first_token(entities):
    result = entities.explain(TEXT, word="unbelievable", check=True, **QUICK)
    p = logits_of(entities, TEXT).logits[0, 2].double().softmax(-1)  # [CLS] the un ##believ ##able
    assert result.target == result.predicted == int(p.argmax())
    assert result.target_probability == pytest.approx(float(p.max()), abs=1e-6)
    assert result.question == f'Why {LABELS[result.target]} for "unbelievable"?'
    assert result.explained.spans == ((0, 4, 16),)
    assert result.words[1].bits == 0 and result.words[0].bits > 0  # what is read stays open
    other = entities.explain(TEXT, word=1, target="o", **QUICK)
    assert other.target_probability == pytest.approx(float(p[0]), abs=1e-6)
    assert entities.explain(TEXT, word=1, mask_target=True, **QUICK).words[1].bits > 0
    several = entities.explain([TEXT, "the film"], word=("unbelievable", "film"), **QUICK)
    assert [found.question.split()[-1] for found in several] == ['"unbelievable"?', '"film"?']
    token = entities.explain(TEXT, token=3, **QUICK)
    assert token.explained.text == "believ"
    p = logits_of(entities, TEXT).logits[0, 3].double().softmax(-1)
    assert token.target_probability == pytest.approx(float(p.max()), abs=1e-6)


def test_probabilities_without_each_word_are_by_number(entities):
    """Where the explained word has bits, too, they were those of their neighbors."""
    result = entities.explain(TEXT, word=1, mask_target=True, check=True, **QUICK)
    each = result.check.without_each
    assert [number for number, without in enumerate(each) if without is None] == [1]
    for number, word in enumerate(result.words):
        if number != 1:
            text = TEXT[: word.start].rstrip() + TEXT[word.end :]
            alone = entities.explain(text.strip(), word=1 - (number < 1), target=result.target_label, n_steps=0)
            assert alone.target_probability == pytest.approx(each[number], abs=1e-5)


def test_an_entity_is_all_of_its_words(entities):
    results = entities.explain(TEXT, entity="all", check=True, mask_target=True, **QUICK)
    p = logits_of(entities, TEXT).logits[0].double().softmax(-1)
    (encoded,) = entities.classifier.encode([TEXT], [None])
    for i, result in enumerate(results):
        firsts = [span.positions[0] for span in encoded.word_spans if result.explained.holds(*span[1:])]
        assert result.target_probability == pytest.approx(float(p[firsts].amax(1).prod()), abs=1e-6)
        alone = entities.explain(TEXT, entity=i, mask_target=True, **QUICK)
        assert np.allclose(alone.bits, result.bits, atol=1e-4)
        if any(not result.explained.holds(word.sequence, word.start, word.end) for word in result.words):
            assert result.check.probability == pytest.approx(result.target_probability)


def left_by(explainer, result, *texts):
    """The output for the texts without the tokens of the leading words, by plain transformers, and what stays of them.

    The row of the model's tokens, and the new place of each.
    """
    leading = {token for token in range(len(result.tokens)) if result.tokens[token].word in result.removal_order}
    batch = explainer.classifier.tokenizer(*texts, return_tensors="pt")
    stay = [token for token in range(batch["input_ids"].shape[1]) if token not in leading]
    with torch.no_grad():
        output = explainer.model(**{name: row[:, stay] for name, row in batch.items()})
    return output, {token: place for place, token in enumerate(stay)}


def test_what_the_model_says_without_the_leading_words(entities, masked, answers, values):
    """ "falls from 99.2% to 0.2%" did not say what the model predicts then."""
    one = entities.explain(TEXT, word="unbelievable", check=True, **QUICK)
    output, place = left_by(entities, one, TEXT)
    label = LABELS[int(output.logits[0, place[2]].argmax())]
    still = "still " * (label == one.target_label)
    assert one.check.decision == label and f"and the model {still}predicts {label}." in str(one)
    text = "the [MASK] was good"
    filled = masked.explain(text, check=True, **QUICK)
    output, place = left_by(masked, filled, text)
    number = int(output.logits[0, place[2]].argmax())
    word = masked.classifier.tokenizer.decode([number]) or f"entry {number}"  # the model has more than the tokenizer
    assert filled.check.decision == word and f'predicts "{word}"' in str(filled)
    value = values.explain(TEXT, tolerance=0.5, check=True, **QUICK)
    output, _ = left_by(values, value, TEXT)
    assert value.check.decision == f"{float(output.logits):.4g}" and f"predicts {value.check.decision}" in str(value)
    answer = answers.explain("was it good?", TEXT, check=True, **QUICK)
    output, place = left_by(answers, answer, "was it good?", TEXT)
    start, end = (logits[0].log_softmax(-1) for logits in (output.start_logits, output.end_logits))
    first = place[min(token for token in range(len(answer.tokens)) if answer.tokens[token].sequence == 1)]
    spans = [(float(start[a] + end[b]), a, b) for a in range(first, len(start) - 1) for b in range(a, len(start) - 1)]
    p, a, b = max(spans)
    back = {new: old for old, new in place.items()}
    spelled = TEXT[answer.tokens[back[a]].start : answer.tokens[back[b]].end]
    assert answer.check.decision == ("no answer" if float(start[0] + end[0]) > p else spelled)
    assert "(context, word" in str(answer) and "(first text" not in str(answer)


def test_entities_by_hand(entities):
    (encoded,) = entities.classifier.encode(["good film was bad the plot a"], [None])
    names = ["O", "B-PER", "I-PER", "B-PER", "O", "I-LOC", "LOC", "O", "O"]  # with [CLS] and [SEP]
    labels = [*LABELS, "LOC"]
    values = torch.nn.functional.one_hot(torch.tensor([labels.index(name) for name in names]), 6)
    assert predicted_entities(encoded, values, labels) == [[1, 2], [3], [5, 6]]
    plain = torch.nn.functional.one_hot(torch.tensor([0, 1, 1, 2, 0, 0, 1, 0, 0]), 3)
    assert predicted_entities(encoded, plain, ["-100", "PER", "LOC"]) == [[1, 2], [3], [6]]


def test_an_answer_is_its_start_and_its_end(answers):
    result = answers.explain("was it good?", TEXT, target="film was", check=True, **QUICK)
    output = logits_of(answers, "was it good?", TEXT)
    ids = answers.classifier.tokenizer("was it good?", TEXT)
    first, last = ids.char_to_token(17, sequence_index=1), ids.char_to_token(22, sequence_index=1)
    p = output.start_logits[0].double().softmax(-1)[first] * output.end_logits[0].double().softmax(-1)[last]
    assert result.target_probability == pytest.approx(float(p), rel=1e-4)
    assert result.question == 'Why this answer: "film was"?' and result.explained.spans == ((1, 17, 25),)
    by_place = answers.explain("was it good?", TEXT, target=(17, 25), **QUICK)
    assert np.array_equal(by_place.bits, answers.explain("was it good?", TEXT, target="film was", **QUICK).bits)
    predicted = answers.explain("was it good?", TEXT, **QUICK)
    assert predicted.target_label in TEXT


def test_a_mask_token_is_its_entry_of_the_vocabulary(masked):
    text = "the [MASK] was good"
    result = masked.explain(text, target="film", check=True, **QUICK)
    p = logits_of(masked, text).logits[0, 2].double().softmax(-1)
    number = masked.classifier.tokenizer.convert_tokens_to_ids("film")
    assert result.target == number and result.target_probability == pytest.approx(float(p[number]), rel=1e-4)
    assert result.question == "Why [MASK] = film?"
    assert masked.explain(text, **QUICK).target == int(p.argmax())


def test_a_choice_is_one_of_all(choosing):
    choices = ["good", "a dull plot", "bad"]
    tokenizer = choosing.classifier.tokenizer
    for number, choice in enumerate(choices):
        result = choosing.explain(TEXT, choices=choices, target=choice, check=True, **QUICK)
        batches = [tokenizer(TEXT, one, return_tensors="pt") for one in choices]
        with torch.no_grad():
            logits = [choosing.model(**{k: v[None] for k, v in batch.items()}).logits[0, 0] for batch in batches]
        p = torch.stack(logits).softmax(-1)
        assert result.target == number and result.pair == choice
        assert result.target_probability == pytest.approx(float(p[number]), abs=1e-5)
        assert result.predicted == int(p.argmax())
        assert result.check.probability == pytest.approx(float(p[number]), abs=1e-5)


def test_a_value_stays_near_its_prediction(values):
    result = values.explain(TEXT, tolerance=0.5, check=True, return_trace=True, **QUICK)
    value = float(logits_of(values, TEXT).logits)
    assert result.target_label == f"{value:.4g}" and result.target_probability == pytest.approx(1)
    assert all(0 < p <= 1 for p in result.trace.probability)
    assert f"the closeness to {result.target_label}" in str(result)
    batch = values.classifier.tensors([values.classifier.head.trial(*values.classifier.encode([TEXT], [None]))])
    batch[TARGET_ROW] = torch.full_like(batch[TARGET_ROW], value - 0.5)
    assert float(values.classifier.probabilities(batch)) == pytest.approx(np.exp(-0.5), abs=1e-5)
    values.explain(TEXT, **QUICK)  # by the spread over neutral texts
    assert values.classifier.head.scale.item() != 0.5


def test_one_label_of_its_own(wordpiece):
    options = {"num_labels": 1, "problem_type": "multi_label_classification", "id2label": {0: "toxic"}}
    explainer = TextExplainer(built("BertForSequenceClassification", **options), wordpiece)
    p = float(logits_of(explainer, TEXT).logits.sigmoid())
    assert explainer.explain(TEXT, target="toxic", **QUICK).target_probability == pytest.approx(p, abs=1e-6)
    assert explainer.explain(TEXT, target="not toxic", **QUICK).target_probability == pytest.approx(1 - p, abs=1e-6)
    assert len(attribute("leave_one_out", explainer, TEXT)[0].words) == 6


def test_a_batch_is_its_texts_one_by_one(entities, answers, masked, values):
    texts = ["good film.", "the film was not unbelievable, a dull plot."]
    for explainer, arguments, words in (
        (entities, (texts,), {"word": ["film", "plot"]}),
        (answers, (["was it?", "good or not?"], texts), {}),
        (masked, (["good [MASK].", "the plot was not [MASK], a dull film."],), {}),
        (values, (texts,), {}),
    ):
        together = explainer.explain(*arguments, **words, **QUICK)
        for i, result in enumerate(together):
            own = {name: value[i] for name, value in words.items()}
            alone = explainer.explain(*(column[i] for column in arguments), **own, **QUICK)
            assert np.allclose(alone.bits, result.bits, atol=1e-4)
            assert alone.explained.label == result.explained.label


def test_results_are_written_read_and_drawn(entities, answers):
    for result in (entities.explain(TEXT, word="film", **QUICK), answers.explain("was it <b>?", TEXT, **QUICK)):
        assert TextAttribution.from_dict(json.loads(json.dumps(result.to_dict()))) == result
        page = token_page([result])
        assert "<title>Why" in page and "<b>?" not in page
        assert str(terminal_text(result)) and result.question in str(result)
    repeated = entities.explain(TEXT, word="film", repeats=2, **QUICK)
    assert len(repeated.repeats) == 2 and repeated.explained.text == "film"


def test_the_target_goes_with_its_tokens(entities, answers):
    from captum_iba.text.head_targets import find_targets
    from captum_iba.text.word_removal import keep_words

    asked = {"word": "film", "token": None, "entity": None, "choices": None, "tolerance": None}
    (found,) = find_targets(entities.classifier, entities.classifier.encode([TEXT], [None]), "O", 1, asked)
    kept = keep_words(found.encoded, {0, 2})
    assert kept.tokens == ("[CLS]", "the", "film", "[SEP]") and kept.inputs[TARGET_ROW] == (0, 0, 1, 0)
    padded = entities.classifier.tensors([found.encoded, kept])[TARGET_ROW]
    assert padded[1].tolist() == [0, 0, 1, 0] + [0] * (len(found.encoded) - 4)
    asked["word"] = None
    (found,) = find_targets(answers.classifier, answers.classifier.encode(["it?"], [TEXT]), "film", 1, asked)
    assert set(found.encoded.inputs[TARGET_ROW]) == {0, START + END}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "needs one of word, token and entity, got none"),
        ({"word": 1, "token": 1}, "got word and token"),
        ({"word": "Rome"}, r"word is 'Rome', which is no word of texts\[0\]; its words are 'the', 'unbelievable'"),
        ({"word": 9}, r"word is 9, expected 0 to 5, for texts\[0\]"),
        ({"word": 1.5}, "word is 1.5, expected its number or its text"),
        ({"token": 40}, "token is 40, expected 0 to"),
        ({"token": 0}, r"token is 0, the special token \[CLS\]"),
        ({"entity": "Rome"}, "entity is 'Rome', which the model does not predict"),
        ({"entity": 90}, "entity is 90, expected"),
        ({"entity": 0, "target": "O"}, "expected None with entity"),
        ({"word": 1, "target": "PER"}, r"target is 'PER' .*, expected one of the classes"),
        ({"word": 1, "choices": ["a"]}, "choices is .* expected None for a model of token classification"),
        ({"word": [1, 2]}, "word has 2 entries, expected one"),
    ],
)
def test_errors_of_token_classification(entities, arguments, says):
    with pytest.raises((ValueError, TypeError), match=says):
        entities.explain(TEXT, **arguments)


def test_a_word_that_is_there_twice_or_truncated_away(entities):
    with pytest.raises(ValueError, match="has 2 times; expected the number of the word, one of 0, 2"):
        entities.explain("film good film", word="film")
    short = TextExplainer(entities.model, entities.classifier.tokenizer, max_length=4)
    with pytest.raises(ValueError, match="word is 'good', which is truncated away"):
        short.explain(TEXT, word="good")
    with pytest.raises(ValueError, match="no other word than what is explained"):
        entities.explain("film", word="film")


def test_errors_of_question_answering(answers):
    for target, says in (
        ("Rome", r"an answer that is not in pairs\[0\]"),
        ("unbel", "begins or ends inside a token"),
        ((5, 90), "expected characters"),
        (3, "expected an answer as the context spells it"),
    ):
        with pytest.raises((ValueError, TypeError), match=says):
            answers.explain("was it?", TEXT, target=target)
    with pytest.raises(ValueError, match="pairs is None, expected the context"):
        answers.explain(TEXT)
    short = TextExplainer(answers.model, answers.classifier.tokenizer, max_length=9)
    with pytest.raises(ValueError, match="target is 'good', which is truncated away"):
        short.explain("was it?", TEXT, target="good")


def test_errors_of_masked_words_and_choices(masked, choosing, values):
    for text, says in (("film", "0 times"), ("[MASK] [MASK]", "2 times")):
        with pytest.raises(ValueError, match=f"has the mask token .* {says}, expected it once"):
            masked.explain(text)
    short = TextExplainer(masked.model, masked.classifier.tokenizer, max_length=4)
    with pytest.raises(ValueError, match=r"mask is '\[MASK\]', which is truncated away"):
        short.explain("a film was [MASK]")
    with pytest.raises(ValueError, match="which is 3 tokens .*expected a word that is one known token"):
        masked.explain("a [MASK]", target="unbelievable")
    with pytest.raises(ValueError, match="choices is None"):
        choosing.explain(TEXT)
    with pytest.raises(ValueError, match="expected two or more texts"):
        choosing.explain(TEXT, choices=["a"])
    with pytest.raises(ValueError, match="mask_target is True, expected False for a model of multiple choice"):
        choosing.explain(TEXT, choices=["a", "b"], mask_target=True)
    with pytest.raises(ValueError, match="tolerance is -1, expected a number above 0"):
        values.explain(TEXT, tolerance=-1)


def test_the_head_is_read_from_the_configuration(entities, answers, masked, values, wordpiece, tmp_path):
    assert head_of_architectures(["BertForSequenceClassification"]).kind == "sequence classification"
    for number, explainer in enumerate((entities, answers, masked, values)):
        folder = tmp_path / str(number)
        explainer.model.save_pretrained(folder)
        wordpiece.save_pretrained(folder)
        loaded = TextExplainer.from_pretrained(folder)
        assert type(loaded.model) is type(explainer.model)
    run = CliRunner().invoke
    word = run(cli.app, ["explain", TEXT, "--model", str(tmp_path / "0"), "--word", "3", "--steps", "1", "--quiet"])
    assert word.exit_code == 0 and 'for "film"?' in word.output, word.output
    arguments = ["explain", TEXT, "--model", str(tmp_path / "1"), "--steps", "1", "--quiet"]
    answer = run(cli.app, [*arguments, "--question", "was it?"])
    assert answer.exit_code == 0 and "Why this answer" in answer.output, answer.output
    wrong = run(cli.app, [*arguments, "--word", "film"])
    assert wrong.exit_code == 2 and "--word is for models of token classification" in wrong.output
    wrong = run(cli.app, [*arguments, "--question", "was it?", "--tolerance", "0.5"])
    assert wrong.exit_code == 2 and "--tolerance is for models of regression" in wrong.output
    filled = ["explain", "a [MASK] film", "--model", str(tmp_path / "2"), "--mask", "unbelievable", "--quiet"]
    assert "error: --mask is 'unbelievable', which is 3 tokens" in run(cli.app, filled).output
    near = ["explain", TEXT, "--model", str(tmp_path / "3"), "--tolerance", "0.5", "--steps", "1", "--json", "-"]
    assert json.loads(run(cli.app, near).stdout)[0]["settings"]["tolerance"] == 0.5


@pytest.mark.parametrize("head", ["entities", "answers"])
def test_a_planted_cue_has_the_most_bits(head):
    make, explain = {
        "entities": (planted_heads.token_classifier, planted_heads.explain_entities),
        "answers": (planted_heads.answerer, planted_heads.explain_answers),
    }[head]
    explainer = TextExplainer(*make(steps=150))
    planted_heads.cue_statistics(explainer, paired=head == "answers")
    found = explain(explainer, 12, seed=3)
    assert sum(right for right, _ in found) == 12
    assert sum(first for _, first in found) >= 11
