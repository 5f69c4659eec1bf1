"""Encoder-decoders explained: which parts of the prompt a response needs that follows in a decoder of its own."""

import copy
import math

import pytest
import torch
import transformers
from captum.attr import TextTokenInput
from torch.nn import functional as F

from captum_iba.attr.objective import information
from captum_iba.compare import compare_prompts
from captum_iba.compare.explain_many import explain_prompts
from captum_iba.compare.parallel import LocalExecutor
from captum_iba.methods.prompt_methods import information_bottleneck_of_prompt, leave_one_part_out
from captum_iba.text import GenerationExplainer
from captum_iba.text.generation import GENERATION, LLMInformationBottleneckAttribution
from tests.text.conftest import DECODER

BART = {
    "vocab_size": 110,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 20,
    "init_std": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 3,
    "forced_eos_token_id": None,
}
SCALED = {**BART, "scale_embedding": True}  # as of the published models: embeddings of ids are multiplied
T5 = {
    "vocab_size": 110,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 3,
    "decoder_start_token_id": 0,
    "initializer_factor": 3.0,
}
BERT = {
    "vocab_size": 110,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}
GEMMA = {**DECODER, "head_dim": 8, "sliding_window": 3}
TOKENS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


def two_berts():
    decoder = transformers.BertConfig(**BERT, is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(transformers.BertConfig(**BERT), decoder)
    config.decoder_start_token_id, config.pad_token_id = 2, 0
    return transformers.EncoderDecoderModel(config)


FAMILIES = {
    "bart": lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(**BART)),
    "mbart": lambda: transformers.MBartForConditionalGeneration(transformers.MBartConfig(**BART)),
    "m2m": lambda: transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**BART)),
    "marian": lambda: transformers.MarianMTModel(transformers.MarianConfig(**SCALED)),
    "pegasus": lambda: transformers.PegasusForConditionalGeneration(transformers.PegasusConfig(**SCALED)),
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)),
    "umt5": lambda: transformers.UMT5ForConditionalGeneration(transformers.UMT5Config(**T5)),
    "t5gemma": lambda: transformers.T5GemmaForConditionalGeneration(
        transformers.T5GemmaConfig(encoder=GEMMA, decoder=GEMMA, vocab_size=110, **TOKENS)
    ),
    "two_berts": two_berts,
}
PROMPT = "the film was not good"
RESPONSE = "a bad film"
QUICK = {"n_steps": 4}


def encoder_decoder(family="bart"):
    torch.manual_seed(0)
    return FAMILIES[family]().eval()


@pytest.fixture
def bart():
    return encoder_decoder()


def naive_bits(model, ids, response):
    """The same bottleneck for a BART in a page: its layers with masks made here, float64, no shared code but the bits.

    The last token of the prompt has no bottleneck.
    """
    model = copy.deepcopy(model).double()
    model.set_attn_implementation("eager")
    n, size = len(ids), model.config.d_model
    weight = model.model.shared.weight.detach()
    mean, std = weight.mean(0), weight.std(0).clamp_min(1e-6)
    squares = ((weight[ids] - mean) / std).square().sum(1)[:-1]
    alpha = torch.full((n - 1,), 5.0, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([alpha], lr=1.0, betas=(0.5, 0.999))
    later = []

    def embed(part, numbers):
        embedded = part.embed_tokens(torch.tensor([numbers]))
        return part.layernorm_embedding(embedded + part.embed_positions(torch.zeros(1, len(numbers)).long()))

    def log_probabilities(logits_of_mask):
        bias = torch.cat([F.logsigmoid(logits_of_mask), torch.zeros(1)])
        hidden = embed(model.model.encoder, ids)
        for layer in model.model.encoder.layers:
            hidden = layer(hidden, torch.where(torch.eye(n, dtype=torch.bool), 0.0, bias)[None, None])
        causal = torch.full((len(response),) * 2, -math.inf, dtype=torch.float64).triu(1)[None, None]
        state = embed(model.model.decoder, [3, *response[:-1]])
        for layer in model.model.decoder.layers:
            state = layer(state, causal, hidden, bias.expand(len(response), -1)[None, None], use_cache=False)
        logits = (model.lm_head(state) + model.final_logits_bias)[0].log_softmax(-1)
        return logits[torch.arange(len(response)), torch.tensor(response)]

    with torch.enable_grad():
        for step in range(4):
            loss = -log_probabilities(-alpha if step % 2 else alpha).mean()
            loss = 2 * (-torch.log(-torch.expm1(-loss)) if step % 2 else loss)
            per_element = information(alpha, squares, float(size))
            (loss + GENERATION.beta * per_element.sum() / ((n - 1) * size)).backward()
            adam.step(), adam.zero_grad()
            later.append(alpha.detach().clone())
    return information(torch.stack(later[2:]).mean(0), squares, float(size)) / math.log(2)


def test_bits_are_those_of_a_naive_bottleneck(bart, wordpiece):
    ids, response = wordpiece(PROMPT)["input_ids"], wordpiece(RESPONSE, add_special_tokens=False)["input_ids"]
    inp = TextTokenInput(PROMPT, wordpiece, skip_tokens=[3])
    result = LLMInformationBottleneckAttribution(bart, wordpiece).attribute(inp, target=RESPONSE, **QUICK)
    assert torch.allclose(result.seq_attr.double(), naive_bits(bart, ids, response), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_encoder_decoders(wordpiece, family):
    model = encoder_decoder(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    explainer = GenerationExplainer(model, wordpiece)
    result = explainer.explain(PROMPT, RESPONSE, per_token=True, check=True, **QUICK)
    response = wordpiece(RESPONSE, add_special_tokens=False)["input_ids"]
    start = explainer.attribution.read(PROMPT).decoder_ids

    def own(prompt):
        """The model's own log-probabilities, in training form."""
        ids = torch.tensor([wordpiece(prompt)["input_ids"]])
        logits = model(input_ids=ids, decoder_input_ids=torch.tensor([[*start, *response[:-1]]])).logits
        return logits[0].log_softmax(-1)[range(3), response].detach()

    assert torch.allclose(torch.tensor([token.probability for token in result.tokens]).log(), own(PROMPT), atol=1e-4)
    removal = explainer.removal(PROMPT, RESPONSE, batch_size=2)
    kept = torch.tensor([[True] * 5, [False, True, True, False, True], [True, False, False, False, False]])
    alone = torch.stack([own(prompt).mean() for prompt in (PROMPT, "film was good", "the")])
    assert torch.allclose(removal(kept), alone, atol=1e-4)
    # Rows of a batch are explanations of their own.
    one = explainer.explain(PROMPT, RESPONSE, per_token=True, batch_size=1, **QUICK)
    for token, same in zip(result.tokens, one.tokens, strict=True):
        assert token.bits == pytest.approx(same.bits, rel=1e-3, abs=1e-2)
    assert max(part.bits for part in result.parts) > 1.05 * min(part.bits for part in result.parts)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_response_is_what_the_model_generates_after_the_tokens_it_has_to_begin_with(bart, wordpiece):
    bart.generation_config.forced_bos_token_id = 7
    explainer = GenerationExplainer(bart, wordpiece)
    assert explainer.attribution.read(PROMPT).decoder_ids == [3, 7]
    own = bart.generate(torch.tensor([wordpiece(PROMPT)["input_ids"]]), max_new_tokens=5, num_beams=1, do_sample=False)
    result = explainer.explain(PROMPT, gen_args={"max_new_tokens": 5, "num_beams": 1, "do_sample": False}, **QUICK)
    assert own[0, 1] == 7 and result.response == wordpiece.decode(own[0, 2:], skip_special_tokens=True)
    config = copy.deepcopy(bart.generation_config)
    config.forced_bos_token_id = 9
    for gen_args, begins in (
        ({"forced_bos_token_id": 9}, [3, 9]),
        ({"generation_config": config}, [3, 9]),
        ({"decoder_input_ids": torch.tensor([[3, 5]])}, [3, 5]),
    ):
        assert explainer.attribution.read(PROMPT, gen_args=gen_args).decoder_ids == begins
        response = explainer.explain(
            PROMPT, gen_args={"max_new_tokens": 5, "do_sample": False, **gen_args}, **QUICK
        ).response
        ids = torch.tensor([wordpiece(PROMPT)["input_ids"]])
        own = bart.generate(ids, max_new_tokens=5, do_sample=False, **gen_args)[0]
        assert own[:2].tolist() == begins and response == wordpiece.decode(own[2:], skip_special_tokens=True)


def test_a_given_response_follows_the_tokens_that_the_decoder_begins_with(bart, wordpiece):
    """They were left out for a given response, and start tokens before ids that generate puts them before."""
    explainer = GenerationExplainer(bart, wordpiece)
    ids, response = (wordpiece(text, add_special_tokens=text is PROMPT)["input_ids"] for text in (PROMPT, "a film"))
    tasks = []
    for gen_args, begins in (
        ({"forced_bos_token_id": 9}, [3, 9]),
        ({"decoder_input_ids": torch.tensor([[5, 7]])}, [3, 5, 7]),
        ({"decoder_input_ids": torch.tensor([[3, 7]])}, [3, 7]),
    ):
        with torch.no_grad():
            decoder_ids = torch.tensor([[*begins, *response[:-1]]])
            logits = bart(torch.tensor([ids]), decoder_input_ids=decoder_ids).logits[0, -len(response) :]
        naive = float(logits.log_softmax(-1)[range(len(response)), response].mean().exp())
        own = bart.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=False, **gen_args)[0]
        assert own[: len(begins)].tolist() == begins
        explained = explainer.explain(PROMPT, "a film", gen_args=gen_args, **QUICK)
        (many,) = explain_prompts(
            LocalExecutor(), explainer, [PROMPT], ["a film"], gen_args={**gen_args, "max_new_tokens": 4}, **QUICK
        )
        kept = torch.ones(1, len(explained.parts), dtype=torch.bool)
        removed = explainer.removal(PROMPT, "a film", gen_args=gen_args)(kept).exp()
        assert naive == pytest.approx(explained.probability, rel=1e-4) == pytest.approx(many.probability, rel=1e-4)
        assert naive == pytest.approx(float(removed), rel=1e-4)
        methods = {"iba": lambda task: tasks.append(task) or leave_one_part_out(task.removal, task.n_parts)}
        compare_prompts(explainer, [PROMPT], ["a film"], methods, gen_args={**gen_args, "max_new_tokens": 4})
        assert float(tasks[-1].removal(kept).exp()) == pytest.approx(naive, rel=1e-4)
        scores, _ = information_bottleneck_of_prompt(tasks[-1], **QUICK)
        assert scores.tolist() == explained.scores.tolist()
    with pytest.raises(ValueError, match="gen_args is given, and response, too"):
        explainer.explain(PROMPT, "a film", gen_args={"max_new_tokens": 4})
    with pytest.raises(TypeError, match="responses is one string, expected a sequence"):
        explain_prompts(LocalExecutor(), explainer, ["a", "b"], "no")


def test_a_prompt_as_long_as_the_response_closes_the_same_attention(bart, wordpiece):
    """Masks of the encoder, of the decoder, and between them have one shape there."""
    response = wordpiece("good", add_special_tokens=False)["input_ids"] * 7
    ids = wordpiece(PROMPT)["input_ids"]
    assert len(ids) == len(response)
    inp = TextTokenInput(PROMPT, wordpiece, skip_tokens=[3])
    result = LLMInformationBottleneckAttribution(bart, wordpiece).attribute(inp, target=response, **QUICK)
    assert torch.allclose(result.seq_attr.double(), naive_bits(bart, ids, response), rtol=2e-3, atol=2e-3)


def test_from_a_folder(bart, wordpiece, tmp_path):
    bart.save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    loaded = GenerationExplainer.from_pretrained(tmp_path)
    assert type(loaded.model) is type(bart)
    result = loaded.explain(PROMPT, RESPONSE, **QUICK)
    assert result.parts == GenerationExplainer(bart, wordpiece).explain(PROMPT, RESPONSE, **QUICK).parts


def test_bad_input(bart, wordpiece):
    attribution = LLMInformationBottleneckAttribution(bart, wordpiece)
    with pytest.raises(ValueError, match="the prompt has a bottleneck for every token"):
        attribution.attribute(TextTokenInput(PROMPT, wordpiece), target=RESPONSE)
    with pytest.raises(ValueError, match="the prompt has 22 tokens, expected at most 20"):
        attribution.attribute("a " * 20, target=RESPONSE)
    with pytest.raises(ValueError, match="the response has 21 tokens, expected at most 20"):
        attribution.attribute(PROMPT, target="a " * 21)
    bart.generation_config.decoder_start_token_id = bart.config.decoder_start_token_id = None
    bart.generation_config.bos_token_id = bart.config.bos_token_id = None
    with pytest.raises(ValueError, match="decoder_start_token_id None, expected the id of the token"):
        attribution.attribute(PROMPT, target=RESPONSE)


def test_attention_past_the_interface_is_refused(wordpiece):
    model = transformers.LongT5ForConditionalGeneration(transformers.LongT5Config(**T5)).eval()
    with pytest.raises(ValueError, match="reads positions of the prompt past its attention"):
        GenerationExplainer(model, wordpiece).explain(PROMPT, RESPONSE)


def test_padding_longer_than_a_window_of_attention_gives_numbers(wordpiece):
    """A check gave NaN where a pass had the whole prompt and half of it."""
    explainer = GenerationExplainer(encoder_decoder("t5gemma"), wordpiece)
    prompt = "the plot was dull , but the film was good"
    kept = torch.tensor([[True] * 10, [True, False] * 5])
    together = explainer.removal(prompt, RESPONSE)(kept)
    assert together == pytest.approx(explainer.removal(prompt, RESPONSE, batch_size=1)(kept), rel=1e-4)
