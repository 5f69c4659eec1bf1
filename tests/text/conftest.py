"""Tiny classifiers with random weights, and tokenizers built in code: nothing is downloaded."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.implementations import ByteLevelBPETokenizer
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from captum_iba.demo import embedded_model_path, embedded_statistics
from captum_iba.text import TextExplainer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'<>()/"
WORDS = ["a", "the", "film", "was", "good", "bad", "not", "un", "##believ", "##able", "dull", "plot", "don", "like"]
VOCABULARY = [*SPECIAL, *dict.fromkeys([*WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)])]

SIZE = {
    "vocab_size": 400,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}

DECODER = {
    "vocab_size": 110,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "pad_token_id": 0,
}
"""Size of a language model whose predictions depend on its prompt, though its weights are random."""


@pytest.fixture(scope="session")
def wordpiece():
    """As of BERT: lower case, [CLS] text [SEP] pair [SEP]."""
    core = Tokenizer(models.WordPiece({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        padding_side="left",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


@pytest.fixture(scope="session")
def byte_level():
    """As of GPT-2: bytes, no special tokens around."""
    core = ByteLevelBPETokenizer()
    core.train_from_iterator(
        ["the film was good, the plot was dull"] * 4, vocab_size=300, special_tokens=["<pad>", "<end>"]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core._tokenizer, pad_token="<pad>", eos_token="<end>")


@pytest.fixture(scope="session")
def without_pre_tokenizer():
    """As of Llama 2: white space becomes a letter, and nothing splits words."""
    letters = [(letter, -9.0) for letter in LETTERS]
    core = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁the", -2.0), ("▁film", -2.0), ("▁", -4.0), *letters], 0))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Replace("▁", " ")
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<unk>")


def build(config):
    """A model of this configuration with random weights, in evaluation mode, whose logits depend on the text."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    return model.eval()


@pytest.fixture(scope="session")
def bert():
    return build(BertConfig(**SIZE, id2label={0: "Negative", 1: "neutral", 2: "positive"}))


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**DECODER)).eval()


@pytest.fixture
def explainer(bert, wordpiece):
    one = TextExplainer(bert, wordpiece, layer=2)
    one.estimate_statistics(["the film was good", "a bad, dull plot!", "not unbelievable"])
    return one


LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def built(name, **options):
    """A small BERT with some head."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**{**SIZE, "num_hidden_layers": 2}, initializer_range=0.5, **options)
    return getattr(transformers, name)(config).eval()


@pytest.fixture(scope="module")
def entities(wordpiece):
    return TextExplainer(built("BertForTokenClassification", num_labels=5, id2label=dict(enumerate(LABELS))), wordpiece)


@pytest.fixture(scope="module")
def choosing(wordpiece):
    return TextExplainer(built("BertForMultipleChoice"), wordpiece)


@pytest.fixture(scope="module")
def film_explainer():
    statistics = [embedded_statistics(layer) for layer in range(1, 13)]
    return TextExplainer.from_pretrained(embedded_model_path(), statistics=statistics)
