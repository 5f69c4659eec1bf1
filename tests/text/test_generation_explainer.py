"""GenerationExplainer: parts of a prompt, spans and contrasts of a response, its result and page."""

import copy
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from captum_iba._reading.prompt_sentences import CUT_OFF
from captum_iba._reading.wording import format_probability
from captum_iba.metrics import prompt_degradation, removal_effects
from captum_iba.text import GenerationAttribution, GenerationExplainer
from captum_iba.text.prompt import read_prompt
from captum_iba.text.prompt_check import check_by_removal
from captum_iba.text.prompt_part_removal import CachedPromptRemoval
from captum_iba.visualization import generation_page
from tests.text.conftest import DECODER

ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
PROMPT = "the film was not good . a dull plot !"
RESPONSE = "a bad film"
QUICK = {"n_steps": 4}
MESSAGES = [{"role": "user", "content": "the film"}]
SYSTEM = [{"role": "system", "content": "the film"}]


@pytest.fixture
def explainer(llama, wordpiece):
    return GenerationExplainer(llama, wordpiece)


def test_a_response_is_explained_by_sentence_and_checked(explainer):
    result = explainer.explain(PROMPT, RESPONSE, granularity="sentence", check=True, **QUICK)
    assert [part.text for part in result.parts] == ["the film was not good .", "a dull plot !"]
    assert [PROMPT[part.start : part.end] for part in result.parts] == [part.text for part in result.parts]
    assert result.response == RESPONSE and [token.text for token in result.tokens] == ["a", " bad", " film"]
    assert result.check.n_removed == 1 and result.check.probability == pytest.approx(result.probability, rel=1e-5)
    removal = explainer.removal(PROMPT, RESPONSE, granularity="sentence")
    first = int(result.shares.argmax()) if result.shares.any() else int(result.bits.argmax())
    kept = torch.ones(1, 2, dtype=torch.bool)
    kept[0, first] = False
    assert float(removal(kept).exp()) == pytest.approx(result.check.without_leading, rel=1e-4)
    assert f"{result.check.without_leading:10.1%}  without the leading part" in str(result)


def test_removed_parts_are_deleted_or_replaced(explainer, llama, wordpiece):
    response = wordpiece(RESPONSE, add_special_tokens=False)["input_ids"]
    read = read_prompt(PROMPT, wordpiece, "word")
    kept = torch.rand(9, len(read.names), generator=torch.Generator().manual_seed(0)) < 0.5
    for replacement in (None, wordpiece.mask_token_id):
        removal = explainer.removal(PROMPT, RESPONSE, replacement=replacement, batch_size=4)
        for row, value in zip(kept.tolist(), removal(kept), strict=True):
            ids = [
                i if part < 0 or row[part] else replacement
                for i, part in zip(read.ids, read.parts, strict=True)
                if part < 0 or row[part] or replacement is not None
            ]
            with torch.no_grad():
                logits = llama(torch.tensor([ids + response])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
            assert float(value) == pytest.approx(float(logits[range(3), response].mean()), abs=1e-5)
        assert removal.passes == 9
    with pytest.raises(ValueError, match="expected booleans"):
        removal(torch.ones(2, 3))


def test_a_span_is_its_tokens_alone(explainer):
    by_text = explainer.explain(PROMPT, RESPONSE, span="bad", per_token=True, **QUICK)
    by_place = explainer.explain(PROMPT, RESPONSE, span=(2, 5), **QUICK)
    assert by_text.span == by_place.span == (2, 5) and by_text.explained == "bad"
    assert [token.explained for token in by_text.tokens] == [False, True]
    assert by_text.bits == pytest.approx(by_place.bits) and by_text.token_bits.shape == (1, len(by_text.parts))
    assert by_text.token_bits[0] == pytest.approx(by_text.bits, abs=1e-3)
    assert by_text.probability == pytest.approx(by_text.tokens[1].probability, rel=1e-4)
    # The matrix has the rows of single tokens.
    matrix = explainer.explain(PROMPT, RESPONSE, per_token=True, batch_size=2, **QUICK).token_bits
    assert matrix[1] == pytest.approx(by_text.bits, abs=1e-3)


def test_a_contrast_is_the_choice_between_two_responses(explainer):
    result = explainer.explain(PROMPT, RESPONSE, contrast="the plot was good", check=True, **QUICK)
    other = explainer.explain(PROMPT, "the plot was good", contrast=RESPONSE, **QUICK)
    assert result.probability + other.probability == pytest.approx(1, abs=1e-5)
    whole = torch.ones(1, len(result.parts), dtype=torch.bool)
    means = [explainer.removal(PROMPT, text)(whole) for text in (RESPONSE, "the plot was good")]
    assert result.probability == pytest.approx(float(torch.sigmoid(means[0] - means[1])), abs=1e-5)
    assert "rather than: the plot was good" in str(result)
    with pytest.raises(ValueError, match="contrast is 'a bad film', which is the response itself"):
        explainer.explain(PROMPT, RESPONSE, contrast=RESPONSE, **QUICK)


def test_a_contrast_to_a_span_takes_its_place(explainer, wordpiece):
    """It was scored right after the prompt, where the span is not."""
    result = explainer.explain(PROMPT, "a bad film", span="film", contrast="plot", check=True, **QUICK)
    ids = wordpiece(PROMPT)["input_ids"] + wordpiece("a bad", add_special_tokens=False)["input_ids"]
    film, plot = wordpiece.convert_tokens_to_ids(["film", "plot"])
    with torch.no_grad():
        logits = explainer.model(torch.tensor([ids])).logits[0, -1]
    assert result.probability == pytest.approx(float((logits[film] - logits[plot]).sigmoid()), abs=1e-5)


def test_an_improbable_response_is_named(llama, wordpiece):
    explainer = GenerationExplainer(copy.deepcopy(llama), wordpiece)
    explainer.model.lm_head.weight.data *= 50
    whole = torch.ones(1, 10, dtype=torch.bool)
    worst = min("abcdefg", key=lambda letter: float(explainer.removal(PROMPT, letter)(whole)))
    with pytest.warns(UserWarning, match=f"response: the model gives '{worst}' .* per token"):
        result = explainer.explain(PROMPT, worst, **QUICK)
    said = "The model would hardly give this response: 0.5% per token."
    unlikely = replace(result, probability=0.005)
    assert said in str(unlikely) and said in generation_page(unlikely) and "unlikely_response" in unlikely.findings
    likely = replace(result, probability=0.02)
    assert "hardly give" not in str(likely) and "unlikely_response" not in likely.findings


def test_a_chat_has_its_contents_and_a_generated_response(llama, wordpiece):
    tokenizer = copy.deepcopy(wordpiece)
    tokenizer.chat_template = "{% for m in messages %}a {{ m['content'] | trim }} !{% endfor %}the plot :"
    chat = [{"role": "system", "content": "dull"}, {"role": "user", "content": " the film was good . "}]
    result = GenerationExplainer(llama, tokenizer).explain(
        chat, gen_args={"max_new_tokens": 4, "do_sample": False}, **QUICK
    )
    assert [part.text for part in result.parts] == ["the", "film", "was", "good", "."]
    assert result.prompt.startswith("a dull !a the film") and len(result.tokens) == 4
    assert "".join(token.text for token in result.tokens) == result.response


def test_the_result_is_saved_and_read_again(explainer, tmp_path):
    result = explainer.explain(PROMPT, RESPONSE, per_token=True, check=True, **QUICK)
    assert GenerationAttribution.load(result.save(tmp_path / "result.json")) == result
    content = json.loads(result.to_json())
    assert sum(part["share"] for part in content["parts"]) == pytest.approx(1)
    assert "GenerationAttribution('a bad film'" in repr(result)
    for damaged in ({}, {"format": content["format"]}, {**content, "parts": 3}):
        (tmp_path / "damaged.json").write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match="damaged.json, which is not a saved attribution"):
            GenerationAttribution.load(tmp_path / "damaged.json")


def test_the_page_has_a_map_per_token_and_no_markup_of_texts(explainer, tmp_path):
    prompt = "<b>film</b> & <script>alert(1)</script> !"
    result = explainer.explain(prompt, "the <i>plot</i>", per_token=True, check=True, **QUICK)
    page = result.save_html(tmp_path / "page.html").read_text("utf-8")
    assert page.count('type="radio"') == page.count('class="prompt"') == 1 + len(result.tokens)
    assert (
        "<script" not in page
        and "&lt;script&gt;" in page
        and "<i>" not in page
        and "http:" not in page
        and "https:" not in page
    )
    assert "<script" not in result._repr_html_() and "&lt;b&gt;film" in result._repr_html_()


def test_bad_input(explainer, wordpiece, bert):
    cases = [
        ({"span": "good"}, ValueError, "span is 'good', which is not in the response 'a bad film', expected once"),
        ({"response": "a baaad", "span": "aa"}, ValueError, "span is 'aa', which is 2 times in the response"),
        ({"span": ""}, ValueError, "span is '', expected a text that is in the response once, or None"),
        ({"span": (4, 4)}, ValueError, r"span is \(4, 4\), expected start and end from 0 to 10"),
        ({"span": 3}, TypeError, "span is 3, expected a text, or"),
        ({"granularity": "line"}, ValueError, "granularity is 'line', expected one of token, word, sentence"),
        ({"granularity": [(0, 99)]}, ValueError, r"granularity has the span \(0, 99\), expected spans in order"),
        ({"granularity": [(5, 8), (3, 6)]}, ValueError, "that do not overlap"),
        ({"granularity": [("a", 2)]}, TypeError, "expected \\(start, end\\) of each span"),
        ({"contrast": ""}, ValueError, "contrast is '', without any token"),
        ({"contrast": "good", "per_token": True}, ValueError, "per_token is True, and contrast is given"),
        ({"response": 3}, TypeError, "response is an int, expected a string, token ids or None"),
        ({"response": " "}, ValueError, "response is ' ', without any token"),
        ({"response": [5, 1.5]}, TypeError, "response has 1.5 among its token ids, expected integers"),
        ({"response": [True]}, TypeError, "response has True among its token ids"),
        ({"response": ["Oslo"]}, TypeError, "response has 'Oslo' among its token ids, expected integers, or a text"),
        ({"response": [500]}, ValueError, "response has the token id 500, expected ids from 0 to"),
        ({"gen_args": [1], "response": None}, TypeError, r"gen_args is \[1\], expected a dictionary of arguments of"),
        ({"gen_args": [1]}, TypeError, r"gen_args is \[1\], expected a dictionary"),
        ({"granularity": None}, TypeError, "granularity is None, expected one of token, word, sentence, paragraph, or"),
        ({"granularity": None, "prompt": MESSAGES}, TypeError, "granularity is None, expected one of token"),
        ({"granularity": [(0, 2)], "prompt": MESSAGES}, ValueError, "granularity has spans, and the prompt is a list"),
        ({"prompt": []}, ValueError, r"prompt is \[\], without any message, expected a string or chat messages"),
        (
            {"prompt": SYSTEM},
            ValueError,
            "a system message alone, and those have no mask; expected a message of a user",
        ),
        ({"prompt": {"a": 1}}, TypeError, "prompt is a dict, expected a string or chat messages"),
        ({"prompt": " "}, ValueError, "prompt is ' ', without any word, expected a prompt"),
        ({"prompt": ["a film", "a plot"]}, TypeError, r"one per call \(explain_batch takes several\)"),
        ({"prompt": "film " * 80}, ValueError, "expected at most 64, the model's positions"),
        ({"check": 1}, ValueError, "check is 1, expected True or False"),
        ({"steps": 1}, TypeError, "'steps' is no argument; did you mean n_steps"),
    ]
    for changes, kind, message in cases:
        with pytest.raises(kind, match=message):
            explainer.explain(**{"prompt": PROMPT, "response": RESPONSE, **changes})
    with pytest.raises(TypeError, match=r"gen_args is \[1\], expected a dictionary"):
        explainer.removal(PROMPT, RESPONSE, gen_args=[1])
    with pytest.raises(TypeError, match=r"prompts\[0\]: gen_args is \[1\], expected a dictionary"):
        explainer.explain_batch([PROMPT], [RESPONSE], gen_args=[1])
    with pytest.raises(ValueError, match="has no language-model head"):
        GenerationExplainer(bert, wordpiece)
    with pytest.raises(TypeError, match=r"model is a str, and tokenizer a str, expected .*from_pretrained loads both"):
        GenerationExplainer("abc", "def")
    with pytest.raises(TypeError, match=r"model is a \w+, and tokenizer a LlamaForCausalLM, expected"):
        GenerationExplainer(wordpiece, explainer.model)
    with pytest.raises(ValueError, match="tokenizer: LlamaForCausalLM gives no offsets, expected a fast tokenizer"):
        GenerationExplainer(explainer.model, explainer.model)
    result = explainer.explain(PROMPT, RESPONSE, rerank=0, **QUICK)
    for write in (result.save_html, result.save):
        with pytest.raises(TypeError, match="path is 5, expected a string or a path"):
            write(5)


def test_token_ids_are_integers_of_any_kind(explainer):
    ids = explainer.tokenizer(RESPONSE, add_special_tokens=False)["input_ids"]
    one = explainer.attribution
    read = explainer.read(PROMPT)
    for given in (
        ids,
        tuple(ids),
        [np.int64(i) for i in ids],
        torch.tensor([ids]),
        [torch.tensor(i) for i in ids],
        [ids],
    ):
        assert one.response_ids(read, given) == ids
    with pytest.raises(TypeError, match="target has 1.5 among its token ids"):
        one.response_ids(read, torch.tensor([1.5]))


def test_from_pretrained_takes_whole_language_models(llama, wordpiece, bert, tmp_path):
    llama.save_pretrained(tmp_path / "llama")
    wordpiece.save_pretrained(tmp_path / "llama")
    loaded = GenerationExplainer.from_pretrained(tmp_path / "llama").explain(PROMPT, RESPONSE, **QUICK)
    assert loaded.bits == pytest.approx(GenerationExplainer(llama, wordpiece).explain(PROMPT, RESPONSE, **QUICK).bits)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        GenerationExplainer.from_pretrained(tmp_path / "nowhere")
    llama.model.save_pretrained(tmp_path / "headless")
    wordpiece.save_pretrained(tmp_path / "headless")
    with pytest.raises(ValueError, match="is not a trained language model, its file lacks lm_head"):
        GenerationExplainer.from_pretrained(tmp_path / "headless")


def test_models_that_see_later_tokens_are_refused(wordpiece):
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=110, initializer_range=0.3, **size)
    with pytest.raises(ValueError, match="BertForMaskedLM sees later tokens"):
        GenerationExplainer(transformers.BertForMaskedLM(config).eval(), wordpiece).explain(PROMPT, RESPONSE)


def byte_tokenizer(merges=()):
    """Every byte is a token, so that a character may have several, and every merge of two."""
    letters = [*ALPHABET, *("".join(merge) for merge in merges)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, [*merges]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_characters_of_several_tokens_are_explained_whole(llama):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**DECODER, "vocab_size": 260})).eval()
    explainer = GenerationExplainer(model, byte_tokenizer())
    result = explainer.explain("a b", "\u65e5\u672c", per_token=True, **QUICK)
    assert len(result.tokens) == 6 and all(token.explained for token in result.tokens)
    assert result.token_bits.shape == (6, 2)
    whole = explainer.removal("a b", "\u65e5\u672c")(torch.ones(1, 2, dtype=torch.bool))
    assert result.probability == pytest.approx(float(whole.exp()), rel=1e-4)
    second = explainer.explain("a b", "\u65e5\u672c", span="\u672c", **QUICK)
    assert [token.explained for token in second.tokens] == [False] * 3 + [True] * 3
    first = explainer.explain("a b", "\u65e5", contrast="\u6708", **QUICK)
    other = explainer.explain("a b", "\u6708", contrast="\u65e5", **QUICK)
    assert first.probability + other.probability == pytest.approx(1, abs=1e-5)


def test_a_space_that_is_a_token_of_its_own_belongs_to_the_word_after_it():
    """Tokenizers have such a token before a number: "8" without it left "cost  euros"."""
    tokenizer = byte_tokenizer()
    for granularity, of_parts in (
        ("word", ["ab", " 8", " c\n", "d  ", " e"]),
        ("sentence", ["ab 8 c\n", "d   e"]),
    ):
        read = read_prompt("ab 8 c\nd   e", tokenizer, granularity)
        of_tokens = list(zip(read.ids, read.parts, strict=True))
        pieces = [tokenizer.decode([i for i, part in of_tokens if part == n]) for n in range(len(of_parts))]
        assert pieces == of_parts and len(read.names) == len(of_parts)


def test_the_system_message_is_explained_on_demand_and_else_said_to_be_left_out(llama, wordpiece):
    tokenizer = copy.deepcopy(wordpiece)
    tokenizer.chat_template = "{% for m in messages %}a {{ m['content'] | trim }} !{% endfor %}the plot :"
    explainer = GenerationExplainer(llama, tokenizer)
    chat = [{"role": "system", "content": "dull"}, {"role": "user", "content": "the film was good ."}]
    alone, both = (explainer.explain(chat, "a film", include_system=of, **QUICK) for of in (False, True))
    assert [part.text.strip() for part in both.parts] == ["dull", *(part.text.strip() for part in alone.parts)]
    said = "The system message is not explained: it has no parts (include_system, --include-system)."
    assert said in str(alone) and said in generation_page(alone) and alone.system == "dull"
    assert said not in str(both) and both.system == ""
    without = {name: value for name, value in alone.to_dict().items() if name != "system"}
    assert GenerationAttribution.from_dict(without) == replace(alone, system="")
    assert GenerationAttribution.from_dict(alone.to_dict()) == alone
    assert len(explainer.explain(chat[:1], "a film", include_system=True, **QUICK).parts) == 1
    with pytest.raises(ValueError, match="include_system is 1, expected True or False"):
        explainer.explain(chat, "a film", include_system=1, **QUICK)


def test_a_span_in_which_no_token_ends_is_refused(explainer):
    with pytest.raises(ValueError, match=r"granularity has the span \(4, 6\), 'fi', in which no token ends"):
        explainer.explain(PROMPT, RESPONSE, granularity=[(0, 3), (4, 6)])


def test_a_span_that_ends_inside_a_token_is_refused(explainer):
    with pytest.raises(ValueError, match=r"span \(0, 6\), 'the fi', which ends inside the token 'film'.*: \(0, 8\)"):
        explainer.explain(PROMPT, RESPONSE, granularity=[(0, 6)])
    read = explainer.read(PROMPT, granularity=[(0, 6), (6, 8)])  # the token belongs to the part that it ends in
    assert read.names == ["the fi", "lm"]


def test_where_nothing_of_the_prompt_is_left_the_response_begins_a_text(llama):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**DECODER, "vocab_size": 260})).eval()
    explainer = GenerationExplainer(model, byte_tokenizer())
    result = explainer.explain("the film", "bad", granularity="sentence", check=True, **QUICK)
    response = explainer.tokenizer("bad")["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([[model.config.bos_token_id, *response]])).logits[0, :-1].log_softmax(-1)
    alone = float(logits[range(3), response].mean().exp())
    assert result.check.without_leading == pytest.approx(alone, rel=1e-4)
    assert "no more than deleting random" not in str(result)  # there are no other parts
    assert explainer.removal("the film", "bad")(torch.zeros(1, 2, dtype=torch.bool)).exp() == pytest.approx(alone)
    model.generation_config.bos_token_id = None
    assert explainer.removal("the film", "bad")(torch.zeros(1, 2, dtype=torch.bool)).isfinite()
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="neither bos_token_id nor eos_token_id"):
        explainer.removal("the film", "bad")(torch.zeros(1, 2, dtype=torch.bool))


def test_presets_of_classifiers_are_refused(explainer):
    with pytest.raises(TypeError, match="preset is 'default', expected BottleneckSettings"):
        explainer.explain(PROMPT, RESPONSE, preset="default")


def test_places_of_a_span_are_those_of_the_response_that_was_given(llama):
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.normalizer = tokenizers.normalizers.NFC()
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**DECODER, "vocab_size": 260})).eval()
    explainer = GenerationExplainer(model, tokenizer)
    decomposed = "e\u0301e\u0301: bad \u65e5"
    result = explainer.explain("a b", decomposed, span=(6, 9), **QUICK)
    assert result.response == decomposed and result.explained == "bad"
    assert [token.text for token in result.tokens if token.explained] == ["b", "a", "d"]
    whole = explainer.explain("a b", decomposed, **QUICK)
    assert "".join(token.text for token in whole.tokens) == decomposed and len(whole.tokens) == 13


def test_the_page_draws_a_character_of_several_tokens_once():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**DECODER, "vocab_size": 260})).eval()
    result = GenerationExplainer(model, byte_tokenizer()).explain("a \u65e5 b", "bad", granularity="token", **QUICK)
    assert len(result.parts) == 7 and [part.text for part in result.parts].count("\ufffd") == 3
    prompt = re.search('<div class="prompt"[^>]*>(.*?)</div>', result._repr_html_(), re.DOTALL)[1]
    assert re.sub('<span class="sr">.*?</span>|<[^>]*>', "", prompt) == "a \u65e5 b"


def test_half_precision_is_accepted_though_attention_rounds_differently(wordpiece):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**{**DECODER, "num_hidden_layers": 6, "initializer_range": 0.4})
    model = transformers.LlamaForCausalLM(config).eval().bfloat16()
    ids = torch.tensor([wordpiece(f"{PROMPT} {RESPONSE}")["input_ids"]])
    found = []
    for attention in ("sdpa", "eager"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            found.append(model(ids).logits.float().log_softmax(-1))
    assert ((found[0] - found[1]).abs() / (1 + found[0].abs())).max() > 1e-2
    model.set_attn_implementation("sdpa")
    assert GenerationExplainer(model, wordpiece).explain(PROMPT, RESPONSE, **QUICK).total_bits > 0
    with torch.no_grad():
        model.lm_head.weight[5] = math.nan
    with pytest.raises(ValueError, match=r"log-probabilities that are not finite in torch\.bfloat16"):
        GenerationExplainer(model, wordpiece).explain(PROMPT, RESPONSE, **QUICK)


@pytest.mark.parametrize("family", ["phi3", "llama"])
def test_rows_of_a_long_context_do_not_change_the_positions_of_short_ones(wordpiece, family):
    torch.manual_seed(0)
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 12}
    rope |= {"long_factor": [4.0, 5.0, 6.0, 8.0], "short_factor": [1.0, 1.1, 1.2, 1.3]}
    if family == "phi3":
        config = transformers.Phi3Config(**DECODER, original_max_position_embeddings=12, rope_parameters=rope)
    else:
        config = transformers.LlamaConfig(**DECODER, rope_parameters=rope)
    explainer = GenerationExplainer(transformers.AutoModelForCausalLM.from_config(config).eval(), wordpiece)
    kept = torch.tensor([[True] * 10, [True, False] * 5])
    removal, one_by_one = (explainer.removal(PROMPT, RESPONSE, batch_size=rows) for rows in (8, 1))
    assert removal(kept) == pytest.approx(one_by_one(kept), rel=1e-5)
    assert len(removal._tokens([True] * 10)) > 12 >= len(removal._tokens([True, False] * 5))


def test_more_parts_are_measured_where_all_measured_ones_speak_against_the_response(explainer):
    went_on = 0
    for response in ("a bad film", "not a film", "dull plot", "good", "the film was bad", "a plot", "was", "!"):
        few = explainer.explain(PROMPT, response, rerank=2, **QUICK)
        effects = [part.effect for part in few.parts if part.effect is not None]
        went_on += len(effects) > 2
        assert max(effects) > 0 or len(effects) == (few.shares > 0).sum()
        assert len(effects) == 2 or sum(effect <= 0 for effect in effects) >= len(effects) / 2
        assert bool(few.leading) == (max(effects) > 0)
    assert went_on


def test_of_several_sequences_the_first_one_is_explained(llama, wordpiece):
    several = {"num_return_sequences": 3, "do_sample": True, "max_new_tokens": 12}
    explainer = GenerationExplainer(llama, wordpiece)
    inputs = wordpiece(PROMPT, return_tensors="pt", return_token_type_ids=False)
    for seed in range(40):
        torch.manual_seed(seed)
        with torch.no_grad():
            first = llama.generate(**inputs, **several)[0, inputs["input_ids"].shape[1] :].tolist()
        if 3 in first[1:-1]:
            break
    assert 3 in first[1:-1]
    torch.manual_seed(seed)
    result = explainer.explain(PROMPT, gen_args=several, **QUICK)
    assert result.response == wordpiece.decode(first[: first.index(3)])


def test_the_leading_parts_are_ranked_by_the_effect_of_their_removal(explainer):
    plain = explainer.explain(PROMPT, RESPONSE, rerank=0, **QUICK)
    assert {part.effect for part in plain.parts} == {None}
    assert list(plain.ranked) == sorted(plain.parts, key=lambda part: -part.bits)[: len(plain.ranked)]
    result = explainer.explain(PROMPT, RESPONSE, rerank=3, **QUICK)
    assert result.bits == pytest.approx(plain.bits) and result.probability == pytest.approx(plain.probability)
    leaders = (-plain.scores).argsort()[:3]
    removal = explainer.removal(PROMPT, RESPONSE)
    _, effects, alone = removal_effects(removal, leaders.tolist(), len(result.parts))
    found = [result.parts[i].effect for i in leaders]
    assert found == pytest.approx(effects.tolist(), abs=1e-5)
    assert [result.parts[i].effect_alone for i in leaders] == pytest.approx(alone.tolist(), abs=1e-5)
    helpful = [effect for effect in found if effect > 0]
    assert 0 < len(helpful) < 3  # the others, whose removal raises the log-probability, are the last
    few = explainer.explain("film bad", RESPONSE, **QUICK)  # of a few parts all are measured, also without bits
    assert len(few.parts) == 2 and all(part.effect is not None for part in few.parts)
    # The others have the measured ones' nats per share of the bits.
    measured = [part.effect is not None for part in result.parts]
    assert [result.estimated_effects[i] for i in leaders] == found
    rate = sum(effect for effect in found if effect > 0) / result.shares[measured].sum()
    others = [not known for known in measured]
    assert result.estimated_effects[others] == pytest.approx(rate * result.shares[others])
    assert np.isnan(plain.estimated_effects).all()
    ranked = [part.effect for part in result.ranked]
    assert ranked[: len(helpful)] == sorted(helpful, reverse=True) and ranked[len(helpful)] is None
    assert ranked[len(helpful) - 3 :] == sorted((effect for effect in found if effect <= 0), reverse=True)
    assert result.importance.max() == 1 and result.importance[result.scores.argmax()] == 1
    assert [result.parts[i].effect for i in leaders if result.importance[i] > 0] == [e for e in found if e > 0]
    in_order = result.importance[(-result.scores).argsort()]
    assert (in_order[:-1] >= in_order[1:]).all()
    assert sorted(result.scores) == list(range(len(result.parts))) and result.scores.argmax() in leaders
    first = result.rows[0]
    assert first.without == pytest.approx(result.probability * math.exp(-result.parts[first.number].effect_alone))
    below = str(result).split("\nwithout it", 1)[1].splitlines()[1]
    assert below.split()[0] == format_probability(first.without)
    drops = prompt_degradation(removal, result.scores, [len(helpful)]).drops
    assert drops == pytest.approx(
        removal(
            torch.tensor(
                [[True] * len(result.parts), [part.effect is None or part.effect <= 0 for part in result.parts]]
            )
        )
        .diff()
        .neg(),
        abs=1e-5,
    )


def test_token_ids_of_a_response_may_be_a_tensor(explainer):
    ids = explainer.tokenizer(RESPONSE, add_special_tokens=False)["input_ids"]
    found, expected = (explainer.explain(PROMPT, given, **QUICK) for given in (torch.tensor([ids]), ids))
    assert found == expected
    with pytest.raises(ValueError, match="prompts is empty, expected one or more"):
        explainer.explain_batch([])


def test_progress_is_shown_over_all_steps(explainer, capsys):
    explainer.explain(PROMPT, RESPONSE, per_token=True, batch_size=2, show_progress=True, **QUICK)
    shown = capsys.readouterr().err
    assert "Generated text" in shown and "12/12" in shown  # two batches of four steps, the final and a closed mask
    assert "Removal: " in shown and "prompts/s" in shown
    explainer.explain(PROMPT, RESPONSE, **QUICK)
    assert capsys.readouterr().err == ""


def test_a_token_that_begins_a_character_is_explained_with_it():
    tokenizer = byte_tokenizer(merges=[("\u0120", "\u00e6")])  # a space, and the first byte of a character
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**DECODER, "vocab_size": 260})).eval()
    explainer = GenerationExplainer(model, tokenizer)
    for response in ("ab \u65e5\u672c", None):
        if response is None:  # as it is generated
            ids = tokenizer("ab \u65e5\u672c")["input_ids"]
            explainer.attribution.response_ids = lambda *args, ids=ids: list(ids)
        result = explainer.explain("a b", response, span="\u65e5", **QUICK)
        assert result.response == "ab \u65e5\u672c" and result.explained == "\u65e5"
        assert [token.explained for token in result.tokens] == [False, False, True, True, True]


def test_the_least_parts_of_a_check_have_the_fewest_bits(explainer):
    """Parts whose removal helps are the last in the order, and may have many bits."""
    result = explainer.explain(PROMPT, RESPONSE, check=True, **QUICK)
    effects = [part.effect for part in result.parts]
    assert any(effect is not None and effect < 0 for effect in effects)  # or the case does not arise
    n_deleted = result.check.n_removed
    leading = (-result.scores).argsort()[:n_deleted]
    least = [i for i in result.bits.argsort(kind="stable") if i not in leading][:n_deleted]
    kept = torch.ones(1, len(result.parts), dtype=torch.bool)
    kept[0, least] = False
    removal = explainer.removal(PROMPT, RESPONSE)
    assert float(removal(kept).exp()) == pytest.approx(result.check.without_least, rel=1e-4)


def test_a_response_that_reached_its_largest_length_is_told(explainer):
    cut = explainer.explain(PROMPT, gen_args={"max_new_tokens": 2, "do_sample": False}, **QUICK)
    assert cut.cut_off and all(CUT_OFF in shown for shown in (str(cut), generation_page(cut)))
    assert CUT_OFF in cut._repr_html_()
    total = len(explainer.read(PROMPT).ids) + 3
    assert explainer.explain(PROMPT, gen_args={"max_length": total, "do_sample": False}, **QUICK).cut_off
    given = explainer.explain(PROMPT, cut.response, **QUICK)
    assert not given.cut_off and CUT_OFF not in str(given) + generation_page(given)
    assert cut.settings["generated_with"]["max_new_tokens"] == 2 and given.settings["generated_with"] is None
    ids = explainer.attribution.response_ids(explainer.read(PROMPT), None, {"max_new_tokens": 2, "do_sample": False})
    explainer.model.generation_config.eos_token_id = ids[1]
    ended = explainer.explain(PROMPT, gen_args={"max_new_tokens": 2, "do_sample": False}, **QUICK)
    assert len(ended.tokens) == 1 and not ended.cut_off


def test_the_check_of_a_single_part_removes_it(explainer):
    result = explainer.explain(PROMPT, RESPONSE, granularity="paragraph", check=True, **QUICK)
    assert len(result.parts) == 1 and "without it  " in str(result) and "of the bits" not in str(result)
    assert result.check.n_removed == 1 and result.check.n_random == 0 and np.isnan(result.check.without_random)


def test_a_seed_draws_other_parts_at_random_and_leaves_the_bits(explainer):
    long = " ".join([PROMPT] * 3)
    first, again, other = (explainer.explain(long, RESPONSE, check=True, seed=seed, **QUICK) for seed in (0, 0, 1))
    assert np.array_equal(first.bits, other.bits) and first.check == again.check
    assert first.check.without_random != other.check.without_random
    assert first.check.without_leading == pytest.approx(other.check.without_leading)
    assert (first.settings["seed"], other.settings["seed"]) == (0, 1)
    (batched,) = explainer.explain_batch([long], [RESPONSE], check=True, seed=1, **QUICK)
    assert batched.check.without_random == pytest.approx(other.check.without_random, rel=1e-3)
    with pytest.raises(ValueError, match="seed is '1', expected an integer"):
        explainer.explain(PROMPT, RESPONSE, seed="1")


def test_bits_at_the_floor_are_no_share(explainer):
    result = explainer.explain(PROMPT, RESPONSE, rerank=0, **QUICK)
    parts = [replace(part, bits=1.005 * part.unneeded_bits) for part in result.parts]
    assert not replace(result, parts=tuple(parts)).shares.any()


def test_there_is_no_check_where_all_parts_speak_against_the_response(explainer):
    parts = [
        replace(part, effect=-0.5, effect_alone=-0.5) for part in explainer.explain(PROMPT, RESPONSE, **QUICK).parts
    ]
    against = replace(explainer.explain(PROMPT, RESPONSE, **QUICK), parts=tuple(parts))
    assert not against.leading and "No part speaks for it." in str(against)
    assert check_by_removal(CachedPromptRemoval(explainer.removal(PROMPT, RESPONSE)), against) is None
    assert "No part speaks for the response; those with the most bits" in generation_page(against)
    assert GenerationAttribution.from_dict(json.loads(json.dumps(against.to_dict()))).check is None


def test_a_response_of_token_ids_is_that_of_its_text(explainer, wordpiece):
    ids = wordpiece(RESPONSE, add_special_tokens=False)["input_ids"]
    one, other = (explainer.explain(PROMPT, response, **QUICK) for response in (RESPONSE, ids))
    assert other.response == RESPONSE and one.bits == pytest.approx(other.bits)


def test_arguments_of_generation_and_messages_without_a_role_are_named(explainer):
    with pytest.raises(TypeError, match="'max_new_tokens' is an argument of generation; pass it in gen_args"):
        explainer.explain(PROMPT, max_new_tokens=3)
    with pytest.raises(TypeError, match="the role of message 0 is None, expected a string such as 'user'"):
        explainer.explain([{"content": "the film"}], RESPONSE)


def test_a_misspelled_argument_and_messages_without_a_template(explainer):
    with pytest.raises(TypeError, match=r"'contrst' is no argument; did you mean contrast\?"):
        explainer.explain(PROMPT, RESPONSE, contrst="good")
    with pytest.raises(TypeError, match=r"'n_step' is no argument; did you mean n_steps\?"):
        explainer.explain(PROMPT, RESPONSE, n_step=2)
    with pytest.raises(ValueError, match="the tokenizer has no chat template; expected a string"):
        explainer.explain([{"role": "user", "content": PROMPT}], RESPONSE, **QUICK)


def test_a_result_has_the_fingerprint_of_the_model_as_it_was(explainer, llama):
    """An auditor could not tell from a file which weights had been explained."""
    before = explainer.explain(PROMPT, RESPONSE, rerank=0, **QUICK)
    digits = before.provenance["model_fingerprint"]
    assert digits == explainer.fingerprint() == GenerationExplainer(llama, explainer.tokenizer).fingerprint()
    with torch.no_grad():
        llama.model.norm.weight.mul_(1.5)
    try:
        changed = explainer.explain(PROMPT, RESPONSE, rerank=0, **QUICK).provenance["model_fingerprint"]
    finally:
        with torch.no_grad():
            llama.model.norm.weight.div_(1.5)
    assert changed != digits and explainer.fingerprint() == digits
    assert f"fingerprint of the model {digits[:16]}" in generation_page(before)


def test_arguments_of_generation_beside_given_responses_are_refused(explainer):
    """``explain_batch`` left them out without a word."""
    settings = {"gen_args": {"max_new_tokens": 3}, "rerank": 0, **QUICK}
    with pytest.raises(ValueError, match=r"prompts\[0\]: gen_args is given, and response, too"):
        explainer.explain_batch([PROMPT], [RESPONSE], **settings)
    some = explainer.explain_batch([PROMPT, PROMPT], [RESPONSE, None], **settings)
    assert some[0].response == RESPONSE and len(some[1].tokens) <= 3
    several = explainer.explain(PROMPT, gen_args={"max_new_tokens": 2, "eos_token_id": [1, 2]}, rerank=0, **QUICK)
    assert several.settings["generated_with"] == {"max_new_tokens": 2, "eos_token_id": [1, 2]}


def test_half_of_a_surrogate_pair_is_named(explainer):
    for prompt, response in (("the film \ud800 good", RESPONSE), (PROMPT, "good \udc00")):
        with pytest.raises(ValueError, match="has half of a surrogate pair"):
            explainer.explain(prompt, response, rerank=0, **QUICK)


def test_effects_that_are_not_finite_are_saved(explainer, tmp_path):
    result = explainer.explain(PROMPT, RESPONSE, rerank=0, **QUICK)
    result = replace(result, parts=(replace(result.parts[0], effect=float("inf")), *result.parts[1:]))
    assert GenerationAttribution.load(result.save(tmp_path / "result.json")).parts == result.parts
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)) == json.loads(result.to_json())
