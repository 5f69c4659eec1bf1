"""Generated text: which parts of a prompt its response needs."""

import copy
import math

import peft
import pytest
import torch
import transformers
from captum.attr import LLMAttributionResult, TextTemplateInput, TextTokenInput
from torch.nn import functional as F

from captum_iba.attr.objective import information
from captum_iba.text import GenerationExplainer, prompt_model
from captum_iba.text.generation import GENERATION, LLMInformationBottleneckAttribution
from captum_iba.text.prompt import divide, read_prompt
from tests.text.conftest import DECODER

WINDOW = {**DECODER, "head_dim": 8, "sliding_window": 3}
WITHOUT_GROUPS = {key: value for key, value in DECODER.items() if key != "num_key_value_heads"}
GPT2 = {"vocab_size": 110, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.3}
OPT = {"vocab_size": 110, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
CTRL = {"vocab_size": 110, "n_positions": 64, "n_embd": 32, "dff": 64, "n_layer": 2, "n_head": 4}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**DECODER),
    "qwen3": lambda: transformers.Qwen3Config(**DECODER, head_dim=8),
    "mistral": lambda: transformers.MistralConfig(**{**DECODER, "sliding_window": 3}),
    "gemma2": lambda: transformers.Gemma2Config(**WINDOW),
    "gemma3": lambda: transformers.Gemma3TextConfig(**WINDOW),
    "gpt2": lambda: transformers.GPT2Config(**GPT2, bos_token_id=2, eos_token_id=3),
    "neox": lambda: transformers.GPTNeoXConfig(**WITHOUT_GROUPS),
    "phi3": lambda: transformers.Phi3Config(**DECODER),
    "opt": lambda: transformers.OPTConfig(**OPT, max_position_embeddings=64, word_embed_proj_dim=32),
    "ctrl": lambda: transformers.CTRLConfig(**CTRL),
    "gpt_oss": lambda: transformers.GptOssConfig(**WINDOW, num_local_experts=2, num_experts_per_tok=1),
    # It counts positions from its inputs: behind a cache those of embeddings begin anew.
    "roberta": lambda: transformers.RobertaConfig(**{**WITHOUT_GROUPS, "is_decoder": True}),
}
PROMPT = "the film was not good"
RESPONSE = "a bad film"
QUICK = {"n_steps": 4}


def language_model(family="llama"):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).eval()


@pytest.fixture
def attribution(llama, wordpiece):
    return LLMInformationBottleneckAttribution(llama, wordpiece)


def naive_bits(model, ids, response, weights):
    """The same bottleneck for a Llama in a page: its own attention, one row, float64, no shared code but the bits."""
    model = copy.deepcopy(model).double()
    tokens, n = torch.tensor([*ids, *response]), len(ids)
    embedded = model.model.embed_tokens(tokens).detach()
    weight = model.model.embed_tokens.weight.detach()
    mean, std = weight.mean(0), weight.std(0).clamp_min(1e-6)
    squares = ((embedded[:n] - mean) / std).square().sum(1)
    last = (torch.arange(len(tokens)) == n - 1).unsqueeze(1)
    alpha = torch.full((n,), 5.0, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([alpha], lr=1.0, betas=(0.5, 0.999))
    size, later = len(tokens), []
    causal = torch.full((size, size), -math.inf, dtype=torch.float64).triu(1)
    own = torch.eye(size, dtype=torch.bool)
    rotary = model.model.rotary_emb(embedded.unsqueeze(0), torch.arange(size).unsqueeze(0))

    def log_probabilities(logits_of_mask):
        lam = torch.cat([logits_of_mask.sigmoid(), torch.ones(size - n)]).unsqueeze(1)
        bias = torch.cat([F.logsigmoid(logits_of_mask), torch.zeros(size - n)]).expand(size, -1)
        mask = causal + torch.where(own, 0.0, bias)
        hidden = torch.where(last, lam * embedded + (1 - lam) * mean, embedded).unsqueeze(0)
        for layer in model.model.layers:
            hidden = layer(hidden, attention_mask=mask[None, None], position_embeddings=rotary)
        logits = model.lm_head(model.model.norm(hidden))[0, n - 1 : -1].log_softmax(-1)
        return logits[torch.arange(len(response)), torch.tensor(response)]

    with torch.enable_grad():
        for step in range(4):
            loss = -(weights * log_probabilities(-alpha if step % 2 else alpha)).sum()
            loss = 2 * (-torch.log(-torch.expm1(-loss)) if step % 2 else loss)
            per_element = information(alpha, squares, float(embedded.shape[1]))
            (loss + GENERATION.beta * per_element.sum() / (n * embedded.shape[1])).backward()
            adam.step(), adam.zero_grad()
            later.append(alpha.detach().clone())
    final = torch.stack(later[2:]).mean(0)
    return information(final, squares, float(embedded.shape[1])) / math.log(2)


def test_bits_are_those_of_a_naive_bottleneck(llama, wordpiece, attribution):
    ids, response = (wordpiece(text, add_special_tokens=False)["input_ids"] for text in (PROMPT, RESPONSE))
    eager = copy.deepcopy(llama)
    eager.set_attn_implementation("eager")
    result = attribution.attribute(TextTokenInput(PROMPT, Plain(wordpiece)), target=RESPONSE, per_token=True, **QUICK)
    weights = torch.cat([torch.full((1, len(response)), 1 / len(response)), torch.eye(len(response))]).double()
    for row, bits in zip(weights, [result.seq_attr, *result.token_attr], strict=True):
        assert torch.allclose(bits.double(), naive_bits(eager, ids, response, row), rtol=2e-3, atol=2e-3)


class Plain:
    """A tokenizer that adds no special tokens."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def encode(self, text, **options):
        return self.tokenizer.encode(text, add_special_tokens=False, **options)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_decoders(wordpiece, family):
    model = language_model(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    implementation = model.config._attn_implementation
    attribution = LLMInformationBottleneckAttribution(model, wordpiece)
    result = attribution.attribute(PROMPT, RESPONSE, per_token=True, **QUICK)
    assert isinstance(result, LLMAttributionResult)
    assert result.token_attr.shape == (len(result.output_tokens), len(result.input_tokens)) == (3, 5)
    ids = wordpiece(PROMPT)["input_ids"] + wordpiece(RESPONSE, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        own = model(torch.tensor([ids])).logits[0, -4:-1].softmax(-1)[range(3), ids[-3:]]
    assert torch.allclose(result.output_probs, own, atol=1e-4)
    # Rows of a batch are explanations of their own.
    for rows in (1, 2):
        one = attribution.attribute(PROMPT, RESPONSE, per_token=True, internal_batch_size=rows, **QUICK)
        assert torch.allclose(one.token_attr, result.token_attr, rtol=1e-3, atol=1e-2)
    assert model.config._attn_implementation == implementation and not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_token_by_itself_is_the_row_of_the_matrix(attribution):
    """The first token does not depend on what follows it."""
    whole = attribution.attribute(PROMPT, RESPONSE, per_token=True, **QUICK)
    alone = attribution.attribute(PROMPT, RESPONSE.split()[0], **QUICK)
    assert torch.allclose(alone.seq_attr, whole.token_attr[0], rtol=1e-4, atol=1e-3)


def test_tokens_that_cannot_reach_the_response_have_the_same_bits(llama, wordpiece):
    """Attention that carries nothing leaves the last token alone, which gives the response; the others are unneeded."""
    model = copy.deepcopy(llama)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    text = TextTokenInput(PROMPT, Plain(wordpiece))
    bits = LLMInformationBottleneckAttribution(model, wordpiece).attribute(text, RESPONSE.split()[0]).seq_attr
    assert bits[:-1].max() - bits[:-1].min() < 0.01 * bits[:-1].max()
    assert abs(bits[-1] - bits[0]) > 0.1 * bits[0]


def test_a_template_has_its_values_and_their_groups(attribution):
    inputs = TextTemplateInput("the {a} was {b} , {c} !", {"a": "film", "b": "not good", "c": "dull"})
    result = attribution.attribute(inputs, RESPONSE, **QUICK)
    assert result.input_tokens == ["film", "not good", "dull"] and result.seq_attr.shape == (3,)
    grouped = TextTemplateInput("the {} was {} , {} !", ["film", "not good", "dull"], mask=[0, 1, 0])
    result = attribution.attribute(grouped, RESPONSE, **QUICK)
    assert result.input_tokens == ["film dull", "not good"] and result.seq_attr.shape == (2,)
    assert set(result.seq_attr_dict) == {"film dull", "not good"}
    with pytest.raises(ValueError, match="has the value 'film' twice"):
        attribution.attribute(TextTemplateInput("the {a} , {a}", {"a": "film"}), RESPONSE)


def test_a_template_has_the_special_tokens_of_a_string(attribution):
    """Captum's LLMAttribution tokenizes both alike."""
    template = TextTemplateInput("the {} was {}", ["film", "not good"])
    probabilities = [attribution.attribute(inp, RESPONSE, **QUICK).output_probs for inp in (PROMPT, template)]
    assert torch.equal(*probabilities)


def test_a_value_at_the_end_may_have_several_tokens_and_a_group(attribution):
    for template in (
        TextTemplateInput("what a {} {}", ["good", "wonderful film"]),
        TextTemplateInput("the {} was {}", ["film", "not good"], mask=[0, 0]),
    ):
        anew = LLMInformationBottleneckAttribution(attribution.model, attribution.tokenizer)
        assert anew.attribute(template, RESPONSE, **QUICK).seq_attr.isfinite().all()


def test_skipped_tokens_and_templates_of_chats_have_no_bottleneck(attribution, wordpiece):
    skipped = TextTokenInput(PROMPT, wordpiece, skip_tokens=[wordpiece.cls_token_id, wordpiece.sep_token_id])
    assert attribution.attribute(skipped, RESPONSE, **QUICK).input_tokens == PROMPT.split()
    tokenizer = copy.deepcopy(wordpiece)
    tokenizer.chat_template = "{% for m in messages %}a {{ m['content'] | trim }} !{% endfor %}the plot :"
    chat = [{"role": "system", "content": "dull"}, {"role": "user", "content": " the film was good "}]
    result = LLMInformationBottleneckAttribution(attribution.model, tokenizer).attribute(chat, RESPONSE, **QUICK)
    assert result.input_tokens == ["the", "film", "was", "good"]
    # A content that the template has before, too.
    chat = LLMInformationBottleneckAttribution(attribution.model, tokenizer)
    assert chat.attribute([{"role": "user", "content": "a"}], RESPONSE, **QUICK).input_tokens == ["a"]
    read = read_prompt([{"role": "user", "content": "a"}], tokenizer)
    assert read.parts == [-1, 0, *[-1] * (len(read.ids) - 2)]


def test_without_a_target_the_model_generates_it(attribution):
    result = attribution.attribute(PROMPT, gen_args={"max_new_tokens": 4, "do_sample": False}, **QUICK)
    ids = attribution.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    generated = attribution.model.generate(ids, max_new_tokens=4, do_sample=False)[0, ids.shape[1] :]
    assert result.output_tokens == [attribution.tokenizer.decode([number]) for number in generated.tolist()]


def test_captums_plots_take_the_result(attribution):
    result = attribution.attribute(PROMPT, RESPONSE, per_token=True, **QUICK)
    figure, _ = result.plot_seq_attr(show=False)
    assert figure.axes
    figure, _ = result.plot_token_attr(show=False)
    assert figure.axes


def test_bad_input(attribution, wordpiece, bert):
    long = " ".join(["film"] * 70)
    cases = [
        ((PROMPT, ""), ValueError, "without any token, expected a response"),
        ((PROMPT, [5, 4000]), ValueError, "target has the token id 4000, expected ids from 0 to 109"),
        ((PROMPT, {}), TypeError, "target is a dict, expected a string, token ids or None"),
        ((long, RESPONSE), ValueError, r"have 7\d tokens, expected at most 64"),
        (("", RESPONSE), ValueError, "prompt is empty, expected a text"),
        ((7, RESPONSE), TypeError, "inp is an int, expected TextTokenInput"),
    ]
    for arguments, kind, message in cases:
        with pytest.raises(kind, match=message):
            attribution.attribute(*arguments, **QUICK)
    with pytest.raises(ValueError, match="settings have n_samples=1"):
        attribution.attribute(PROMPT, RESPONSE, n_samples=1)
    with pytest.raises(TypeError, match="'steps' is no argument; did you mean n_steps"):
        attribution.attribute(PROMPT, RESPONSE, steps=1)
    with pytest.raises(ValueError, match="gen_args is given, and target, too"):
        attribution.attribute(PROMPT, RESPONSE, gen_args={})
    with pytest.raises(ValueError, match="has no language-model head"):
        LLMInformationBottleneckAttribution(bert, wordpiece)


def test_models_that_read_past_their_attention_are_refused(wordpiece):
    torch.manual_seed(0)
    mamba = transformers.MambaConfig(vocab_size=110, hidden_size=32, num_hidden_layers=2)
    model = transformers.MambaForCausalLM(mamba).eval()
    past = LLMInformationBottleneckAttribution(model, wordpiece)
    # Also where one short part is all that is attributed to, and where such a prompt came before.
    for prompt in (TextTemplateInput("what a{}", [" film"]), PROMPT):
        with pytest.raises(ValueError, match="reads positions of the prompt past its attention"):
            past.attribute(prompt, RESPONSE)
    model.backbone.norm_f.weight.data *= 0.01  # also where what was read hardly changes the output
    with pytest.raises(ValueError, match="reads positions of the prompt past its attention"):
        LLMInformationBottleneckAttribution(model, wordpiece).attribute(PROMPT, RESPONSE)
    bloom = transformers.BloomConfig(vocab_size=110, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(ValueError, match="BloomForCausalLM does not go by the interface"):
        LLMInformationBottleneckAttribution(transformers.BloomForCausalLM(bloom), wordpiece)


def test_parts_of_a_configuration_keep_their_attention(wordpiece):
    text = {**WINDOW, "num_hidden_layers": 1}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(text_config=text, vision_config={**vision, "image_size": 28, "patch_size": 14})
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    model.set_attn_implementation({"text_config": "sdpa", "vision_config": "eager"})
    parts = (model.config, model.config.text_config, model.config.vision_config)
    before = [part._attn_implementation for part in parts]
    LLMInformationBottleneckAttribution(model, wordpiece).attribute(PROMPT, RESPONSE, **QUICK)
    assert [part._attn_implementation for part in parts] == before == ["sdpa", "sdpa", "eager"]


def test_learned_prompts_are_refused(llama, wordpiece):
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(copy.deepcopy(llama), config)
    with pytest.raises(ValueError, match="has learned prompts of PEFT"):
        LLMInformationBottleneckAttribution(model, wordpiece)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_stands_before_the_first_part_is_computed_once(wordpiece, family, monkeypatch):
    """With the same result; layers that attend in windows compute it in every pass."""
    explainer = GenerationExplainer(language_model(family), wordpiece)
    text = "a bad plot and a dull end . " * 4 + PROMPT
    start = len(text) - len(PROMPT)
    spans = [(start + a, start + b) for a, b in divide(PROMPT, "word")]
    explainer.explain(PROMPT, RESPONSE, rerank=0, n_steps=1)  # the check of the model, once
    lengths = []

    def look(module, args, inputs):
        given = inputs["inputs_embeds" if inputs.get("input_ids") is None else "input_ids"]
        lengths.append(given.shape[:2].numel())

    count = explainer.model.register_forward_pre_hook(look, with_kwargs=True)
    results = []
    for least in (16, 1000):
        monkeypatch.setattr(prompt_model, "_LEAST_PREFIX", least)
        lengths.clear()
        explained = explainer.explain(text, " " + RESPONSE, granularity=spans, per_token=True, check=True, **QUICK)
        removal = explainer.removal(text, " " + RESPONSE, granularity=spans)
        results.append((explained, removal(torch.rand(20, 5, generator=torch.Generator().manual_seed(0)) > 0.5)))
        results.append(sum(lengths))
    count.remove()
    (cached, without_some), tokens, (whole, other), all_tokens = results
    assert cached.bits == pytest.approx(whole.bits, rel=1e-4, abs=1e-4)
    assert [part.effect for part in cached.parts] == pytest.approx([part.effect for part in whole.parts], abs=1e-4)
    for one, same in zip(cached.tokens, whole.tokens, strict=True):
        assert one.bits == pytest.approx(same.bits, rel=1e-4, abs=1e-4)
    assert torch.allclose(without_some, other, atol=1e-4)
    without = dict.fromkeys(["mistral", "gemma2", "gemma3", "gpt_oss", "roberta"], 1.2)
    assert tokens < {**without, "phi3": 0.9}.get(family, 0.5) * all_tokens


def test_layers_of_attention_to_an_image_have_no_cached_keys(wordpiece):
    torch.manual_seed(0)
    config = transformers.models.mllama.MllamaTextConfig(**DECODER, cross_attention_layers=[1])
    explainer = GenerationExplainer(transformers.MllamaForCausalLM(config).eval(), wordpiece)
    text = "a bad plot and a dull end . " * 4 + PROMPT
    result = explainer.explain(text, RESPONSE, granularity=[(len(text) - 8, len(text))], **QUICK)
    assert result.bits.shape == (1,) and result.bits[0] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_leaves_the_embeddings_as_they_are(wordpiece, family):
    """CTRL multiplies its inputs in place."""
    model = language_model(family)
    closable = prompt_model.ClosableModel(model, read_prompt(PROMPT, wordpiece), [5, 10, 7])
    before = closable.embedded.clone()
    with torch.no_grad():
        first, second = closable.log_probabilities(1), closable.log_probabilities(2)
    assert closable.embedded.equal(before)
    assert torch.allclose(first, second[:1], atol=1e-5) and torch.allclose(first, second[1:], atol=1e-5)
