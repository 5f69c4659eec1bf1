"""Responses that are given have the tokens that the model would generate after the prompt."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaTokenizer

from captum_iba.text import GenerationExplainer, LLMInformationBottleneckAttribution
from captum_iba.text.model_properties import rows_in_memory
from captum_iba.text.prompt import encode_response, read_prompt

MESSAGES = [{"role": "user", "content": "Where is Anna?"}]
NEW_LINE = "{% for m in messages %}<|{{m.role}}|>\n{{m.content}}</s>\n{% endfor %}" + (
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPACE = "{% for m in messages %}" + (
    "{% if m.role == 'user' %}[INST] {{m.content}} [/INST]{% else %} {{m.content}} </s>{% endif %}{% endfor %}"
)
GREEDY = {"max_new_tokens": 1, "do_sample": False}


@pytest.fixture(scope="module")
def llama_tokenizer():
    """Of Llama's kind: it puts "▁" before a text that it encodes, and takes it away from one that it decodes."""
    vocabulary = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", *dict.fromkeys("WhereisAnnalvRmoPuta?<|>:.s[]/INST")]
    merges = []
    for word in ("▁Where", "▁is", "▁Anna", "▁Rome", "▁Paris", "Rome", "Paris"):
        for end in range(1, len(word)):
            if word[: end + 1] not in vocabulary:
                vocabulary.append(word[: end + 1])
                merges.append((word[:end], word[end]))
    return LlamaTokenizer(vocab={token: number for number, token in enumerate(vocabulary)}, merges=merges)


@pytest.fixture(scope="module")
def llama(llama_tokenizer):
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(llama_tokenizer), initializer_range=0.3, **size)).eval()


def explainer_of(llama, tokenizer, template):
    tokenizer.chat_template = template
    return GenerationExplainer(llama, tokenizer)


@pytest.mark.parametrize(("template", "token"), [(NEW_LINE, "Rome"), (SPACE, "▁Rome")])
def test_a_text_has_the_tokens_that_follow_the_template(llama, llama_tokenizer, template, token):
    explainer = explainer_of(llama, llama_tokenizer, template)
    given = explainer.explain(MESSAGES, "Rome", rerank=0, n_steps=1)
    (number,) = llama_tokenizer.convert_tokens_to_ids([token])
    ids = llama_tokenizer(llama_tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True))
    with torch.no_grad():
        logits = llama(torch.tensor([[i for i in ids["input_ids"] if i != llama_tokenizer.bos_token_id]])).logits[0, -1]
    assert given.probability == pytest.approx(float(logits.softmax(-1)[number]), rel=1e-4)
    assert [(one.text, one.start, one.end) for one in given.tokens] == [("Rome", 0, 4)]


@pytest.mark.parametrize(
    ("template", "token"), [(NEW_LINE, "Rome"), (NEW_LINE, "▁Rome"), (NEW_LINE, "Paris"), (SPACE, "▁Rome")]
)
def test_what_is_generated_is_the_same_when_it_is_given(llama, llama_tokenizer, template, token, monkeypatch):
    explainer = explainer_of(llama, llama_tokenizer, template)
    ids = llama_tokenizer.convert_tokens_to_ids([token])
    monkeypatch.setattr(llama, "generate", lambda inputs, **_: torch.cat([inputs, torch.tensor([ids])], 1))
    generated = explainer.explain(MESSAGES, rerank=0, n_steps=1)
    given = explainer.explain(MESSAGES, generated.response, rerank=0, n_steps=1)
    assert given.probability == pytest.approx(generated.probability, rel=1e-4)
    choices = [explainer.explain(MESSAGES, one, contrast="is", rerank=0, n_steps=1) for one in (None, given.response)]
    assert choices[0].probability == pytest.approx(choices[1].probability, rel=1e-4)


@pytest.mark.parametrize(
    ("prompt", "response", "tokens"),
    [
        ("Anna is", " Rome", ["▁Rome"]),
        ("Anna is\n", "Rome", ["Rome"]),
        ("Anna is ", "Rome", ["Rome"]),  # with the prompt it would be one token with the space at its end
    ],
)
def test_a_text_has_the_tokens_that_follow_a_string(llama, llama_tokenizer, prompt, response, tokens):
    read = read_prompt(prompt, llama_tokenizer)
    ids, spans = encode_response(llama_tokenizer, read, response)
    assert llama_tokenizer.convert_ids_to_tokens(ids) == tokens and spans[-1][1] == len(response)
    result = LLMInformationBottleneckAttribution(llama, llama_tokenizer).attribute(prompt, response, n_steps=1)
    assert len(result.output_tokens) == len(tokens)


def test_a_contrast_without_the_space_of_the_response_is_warned_of(llama, llama_tokenizer):
    explainer = GenerationExplainer(llama, llama_tokenizer)
    with pytest.warns(UserWarning, match="one of ' Rome' and 'Paris' begins with white space"):
        explainer.explain("Anna is", " Rome", contrast="Paris", rerank=0, n_steps=1)


def test_a_prompt_that_the_memory_is_too_small_for_is_refused(llama, llama_tokenizer, monkeypatch):
    """A prompt of 7,500 tokens ended the process without a message."""
    explainer = explainer_of(llama, llama_tokenizer, SPACE)
    monkeypatch.setattr("os.sysconf", lambda name: 50)  # 50 pages of 50 bytes
    with pytest.raises(ValueError, match="tokens, whose attention weights need at least .* GB for the backward pass"):
        explainer.explain(MESSAGES, response="Rome")
    assert rows_in_memory(llama, 10, 8) == 1  # 2,400 bytes per row
    monkeypatch.setattr("os.sysconf", lambda name: 150)
    assert [rows_in_memory(llama, length, 8) for length in (5, 10, 20)] == [8, 4, 1]
