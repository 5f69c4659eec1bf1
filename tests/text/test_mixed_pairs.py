"""Texts and pairs in one call: each has the statistics of its kind, whatever else is explained."""

import numpy as np
import pytest

from captum_iba.methods import attribute
from captum_iba.text import Classifier, TextExplainer
from captum_iba.text.arguments import doubt_of_pairs

QUICK = {"n_steps": 3}
TEXTS, PAIRS = ["", "the film was good", "a dull plot"], ["the plot", "not bad", ""]


@pytest.mark.filterwarnings("ignore")
def test_a_pair_with_an_empty_text_does_not_depend_on_the_others(bert, wordpiece):
    """32.1 bits alone and 1468.6 beside a complete pair: the neutral statistics were chosen for the call."""
    explainer = TextExplainer(bert, wordpiece)
    together = explainer.explain(TEXTS, PAIRS, **QUICK)
    for text, pair, of_call in zip(TEXTS, PAIRS, together, strict=True):
        alone = TextExplainer(bert, wordpiece).explain(text, pair, **QUICK)
        np.testing.assert_allclose(alone.bits, of_call.bits, rtol=1e-4, atol=1e-4)
        assert alone.closed_probability == pytest.approx(of_call.closed_probability, abs=1e-5)
        assert alone.statistics == of_call.statistics
    assert len({result.statistics for result in together}) == 2
    seen = attribute("iba", Classifier(bert, wordpiece), TEXTS, PAIRS, [one.target for one in together], **QUICK)
    for scores, result in zip(seen, together, strict=True):
        np.testing.assert_allclose(scores.tokens, result.bits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("text", "pair", "says"),
    [
        ("a", None, "No second text is given (pairs, --pair)"),
        ("", "b", "The first text is empty"),
        ("a", " ", "The second text is empty"),
        ("a", "b", ""),
    ],
)
def test_which_text_of_a_pair_is_missing(text, pair, says):
    """ "No second text is given" stood above the second text."""
    said = doubt_of_pairs(text, pair, ["entailment", "neutral", "contradiction"])
    assert said.split(", but")[0] == says
