"""Padding, hidden states and calls: what a layer returns besides, or another number of times, changes no bits."""

import warnings

import pytest
import torch
from torch import nn

from captum_iba import FeatureStatistics, InformationBottleneckAttribution

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


@pytest.fixture
def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


@pytest.mark.parametrize("hidden_states", [False, True])
def test_a_backbone_that_returns_all_hidden_states_has_its_last_one(bert, hidden_states):
    """It had the embeddings, which come first among the hidden states."""
    batches = [{"input_ids": torch.randint(1, 50, (50, 20)), "output_hidden_states": hidden_states} for _ in range(2)]

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert, self.head = bert, nn.Linear(16, 3)

        def forward(self, input_ids, output_hidden_states):
            output = self.bert(input_ids, output_hidden_states=output_hidden_states)
            return self.head(output.last_hidden_state.mean(1))

    model = Classifier().eval()
    statistics = FeatureStatistics.estimate(model, bert, batches)
    with torch.no_grad():
        states = torch.cat([bert(batch["input_ids"]).last_hidden_state for batch in batches]).flatten(0, 1)
    torch.testing.assert_close(statistics.mean, states.mean(0))
    iba = InformationBottleneckAttribution(model, bert, statistics=statistics)
    bits = iba.attribute(batches[0]["input_ids"][:2], 1, (hidden_states,))
    assert bits[0].shape == (2, 20, 16) and bits[0].sum() > 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_of_a_decoder_changes_nothing(side):
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    model = transformers.Qwen2ForCausalLM(config).eval()
    layer = model.model.layers[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 5 if parameter.ndim > 1 else 1  # so that the outputs depend on the inputs

    def last_logits(ids, attention_mask):
        positions = (attention_mask.cumsum(1) - 1).clamp_min(0)
        last = attention_mask.shape[1] - 1 - attention_mask.flip(1).argmax(1)
        logits = model(ids, attention_mask=attention_mask, position_ids=positions).logits
        return logits[torch.arange(len(ids)), last]

    texts = [torch.tensor([5, 9, 2, 7, 30]), torch.tensor([8, 3, 44]), torch.tensor([1, 2, 3, 4])]
    padded, mask = torch.zeros(3, 6, dtype=torch.long), torch.zeros(3, 6, dtype=torch.long)
    places = [slice(6 - len(text), 6) if side == "left" else slice(len(text)) for text in texts]
    for row, (text, place) in enumerate(zip(texts, places, strict=True)):
        padded[row, place], mask[row, place] = text, 1
    statistics = FeatureStatistics.estimate(model, layer, torch.randint(50, (60, 20)).split(20))
    iba = InformationBottleneckAttribution(last_logits, layer, statistics=statistics)
    together = iba.attribute(padded, [3, 4, 5], (mask,), bottleneck_mask=mask.bool())
    for row, (text, place) in enumerate(zip(texts, places, strict=True)):
        alone = iba.attribute(text[None], 3 + row, (torch.ones(1, len(text), dtype=torch.long),))
        torch.testing.assert_close(together[row, place], alone[0], rtol=1e-3, atol=1e-3)


def test_padding_of_channels_first_changes_nothing():
    torch.manual_seed(0)
    convolution, head = nn.Conv1d(4, 8, 3, padding=1), nn.Linear(8, 3)

    def pooled(x, mask):
        return head(convolution(x).relu().mul(mask[:, None]).sum(2) / mask.sum(1, keepdim=True))

    x = torch.randn(1, 4, 5)
    longer = torch.cat([x, torch.zeros(1, 4, 3)], 2)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]])
    statistics = FeatureStatistics.estimate(convolution, convolution, torch.randn(400, 4, 5).split(100))
    iba = InformationBottleneckAttribution(pooled, convolution, statistics=statistics)
    alone = iba.attribute(x, 1, (mask[:, :5],))
    padded = iba.attribute(longer, 1, (mask,), bottleneck_mask=mask[:, None].bool())
    torch.testing.assert_close(padded[..., :5], alone)


def test_positions_that_are_not_maskable_may_be_infinite():
    """As padding before a maximum is."""
    torch.manual_seed(0)

    class Masked(nn.Module):
        def forward(self, x, mask):
            return x.masked_fill(~mask[..., None], -torch.inf)

    embedding, masked, head = nn.Embedding(10, 8), Masked(), nn.Linear(8, 3)
    ids, mask = torch.randint(10, (2, 6)), torch.arange(6) < torch.tensor([[6], [4]])

    def model(ids, mask):
        return head(masked(embedding(ids), mask).amax(1))

    statistics = FeatureStatistics("masked", feature_dim=-1)
    statistics.update(embedding(torch.arange(10).repeat(200)).detach())
    iba = InformationBottleneckAttribution(model, masked, statistics=statistics)
    bits = iba.attribute(ids, 1, (mask,), bottleneck_mask=mask, feature_dim=-1)
    alone = iba.attribute(ids[1:, :4], 1, (mask[1:, :4],), feature_dim=-1)
    assert bits.isfinite().all() and not bits[1, 4:].any()
    torch.testing.assert_close(bits[1:, :4], alone)


def test_the_last_call_is_the_last_in_every_batch():
    """It was the first in all batches if the first batch ran the layer once."""
    torch.manual_seed(0)
    cell = nn.Linear(6, 6)

    def model(x):
        for _ in range(x.shape[1]):
            x = cell(x).tanh()
        return x.sum(1)

    short, long = torch.randn(500, 1, 6), torch.randn(500, 4, 6)
    one, other = (FeatureStatistics.estimate(model, cell, batches) for batches in ([short, long], [long, short]))
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.std, other.std)


def test_a_mask_of_another_sequence_is_seen_beside_an_attention_mask_of_ones():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=2, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    mask = (torch.arange(10) < torch.randint(3, 11, (200, 1))).long()
    batch = {
        "input_ids": torch.randint(1, 50, (200, 7)),
        "attention_mask": torch.ones(200, 7, dtype=torch.long),
        "decoder_input_ids": torch.randint(1, 50, (200, 10)),
        "decoder_attention_mask": mask,
    }
    with pytest.warns(UserWarning, match="'decoder_attention_mask' seems to mark padding"):
        FeatureStatistics.estimate(model, model.decoder.block[0], [batch])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FeatureStatistics.estimate(model, model.encoder.block[0], [batch])


class TwoTexts(nn.Module):
    """Two encoders, one for each text."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(50, 8), nn.Embedding(50, 8)
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask, passage_ids, passage_mask):
        texts = ((self.first(input_ids), attention_mask), (self.mix(self.second(passage_ids)), passage_mask))
        return self.head(sum((values * mask[..., None]).sum(1) for values, mask in texts))


def padded(lengths, n_positions=20):
    return (torch.arange(n_positions) < torch.as_tensor(lengths)[:, None]).long()


@pytest.mark.parametrize("as_tuple", [False, True])
@pytest.mark.parametrize("kind", ["shorter", "whole", "additive"])
def test_the_mask_of_one_text_does_not_serve_the_layers_of_another(as_tuple, kind):
    torch.manual_seed(0)
    ids = torch.randint(1, 50, (2, 100, 20))
    first, second = padded(torch.randint(3, 9, (100,))), padded(torch.randint(9, 21, (100,)))
    second = {"shorter": second, "whole": torch.ones_like(second), "additive": (second - 1) * 1e4}[kind]
    batch = {"input_ids": ids[0], "attention_mask": first, "passage_ids": ids[1], "passage_mask": second}
    model = TwoTexts()
    with pytest.warns(UserWarning, match="'passage_mask' and the attention mask seem to mark padding of two texts"):
        statistics = FeatureStatistics.estimate(model, model.mix, [tuple(batch.values()) if as_tuple else batch])
    assert statistics.count == 2000
    named = FeatureStatistics.estimate(model, model.mix, [batch], mask_func=lambda batch: batch["passage_mask"] > -1)
    assert named.count == (2000 if kind != "additive" else int((second == 0).sum()))


@pytest.mark.parametrize("other", ["same", "inverse", "special"])
def test_a_second_mask_of_the_same_text_changes_nothing(other):
    torch.manual_seed(0)
    first = padded(torch.randint(3, 21, (100,)))
    special = torch.zeros_like(first)
    special[:, 0] = special[:, 2] = 1
    second = {"same": first.bool(), "inverse": first == 0, "special": special}[other]
    ids = torch.randint(1, 50, (100, 20))
    batch = {"input_ids": ids, "attention_mask": first, "passage_ids": ids, "passage_mask": second}
    model = TwoTexts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FeatureStatistics.estimate(model, model.mix, [batch]).count == int(first.sum())


def test_padding_does_not_count_in_rows_of_all_examples():
    torch.manual_seed(0)

    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.layer = nn.Embedding(50, 8), nn.Linear(8, 4)

        def forward(self, input_ids, attention_mask):
            rows = self.layer(self.embedding(input_ids).flatten(0, 1))
            return (rows.unflatten(0, input_ids.shape) * attention_mask[..., None]).sum(1)

    model, mask = Flat(), padded(torch.randint(3, 21, (100,)))
    ids = torch.randint(1, 50, (100, 20))
    statistics = FeatureStatistics.estimate(model, model.layer, [{"input_ids": ids, "attention_mask": mask}])
    with torch.no_grad():
        rows = model.layer(model.embedding(ids))[mask.bool()]
    assert statistics.count == int(mask.sum())
    torch.testing.assert_close(statistics.mean, rows.mean(0))


class QuestionAndAnswer(nn.Module):
    """A text and another one, each through an encoder of its own; the mask is that of the first."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 6)
        self.question, self.answer = (nn.TransformerEncoderLayer(6, 2, 16, batch_first=True) for _ in range(2))
        self.head = nn.Linear(12, 2)

    def forward(self, input_ids, answer_ids, attention_mask):
        question = self.question(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        answer = self.answer(self.embedding(answer_ids))
        return self.head(torch.cat([(question * attention_mask[..., None]).sum(1), answer[:, 0]], 1))


def test_the_mask_of_one_text_is_not_used_for_the_other():
    """Real positions of the second text were dropped: both were shortened to see whether a layer follows the mask."""
    torch.manual_seed(0)
    model = QuestionAndAnswer().eval()
    ids, answers = torch.randint(2, 30, (2, 200, 8))
    mask = (torch.arange(8) < torch.randint(2, 9, (200, 1))).long()
    batch = {"input_ids": ids * mask, "answer_ids": answers, "attention_mask": mask}
    with pytest.warns(UserWarning, match="layer answer gives .* other positions"):
        found = FeatureStatistics.estimate(model, model.answer, [batch])
    with torch.no_grad():
        states = model.answer(model.embedding(answers)).flatten(0, 1)
    assert found.count == 1600 and torch.allclose(found.mean, states.mean(0), atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FeatureStatistics.estimate(model, model.question, [batch]).count == int(mask.sum())


def test_the_mask_of_an_encoder_is_not_used_for_a_decoder_of_one_length():
    """It does not run on shorter texts, and the sizes are equal: only the names tell that there are two texts."""

    class Translation(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.positions = nn.Embedding(30, 6), nn.Parameter(torch.randn(8, 6))
            self.encoder = nn.TransformerEncoderLayer(6, 2, 16, batch_first=True)
            self.decoder = nn.TransformerDecoderLayer(6, 2, 16, batch_first=True)

        def forward(self, src, tgt, src_key_padding_mask, tgt_key_padding_mask):
            memory = self.encoder(self.embedding(src) + self.positions, src_key_padding_mask=src_key_padding_mask)
            return self.decoder(self.embedding(tgt) + self.positions, memory, tgt_key_padding_mask=tgt_key_padding_mask)

    torch.manual_seed(0)
    model = Translation().eval()
    src, tgt = torch.randint(1, 30, (2, 100, 8))
    masks = [torch.arange(8) >= torch.randint(2, 9, (100, 1)) for _ in range(2)]
    batch = {"src": src, "tgt": tgt, "src_key_padding_mask": masks[0], "tgt_key_padding_mask": masks[1]}
    with pytest.warns(UserWarning, match="'tgt_key_padding_mask' and the attention mask seem to mark padding of two"):
        found = FeatureStatistics.estimate(model, model.decoder, [batch])
    assert found.count == 800
    named = FeatureStatistics.estimate(model, model.decoder, [batch], mask_func=lambda b: ~b["tgt_key_padding_mask"])
    assert named.count == int((~masks[1]).sum())


class Documents(nn.Module):
    """Sentences of documents, each a row of its own: the layer's rows are not the batch's."""

    def __init__(self, mask_name, rows_of_tokens):
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(30, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.mask_name, self.rows_of_tokens = mask_name, rows_of_tokens

    def forward(self, input_ids, **masks):
        embedded = self.embedding(input_ids)
        rows = embedded.flatten(0, -2) if self.rows_of_tokens else embedded.flatten(0, 1)
        return self.head(self.layer(rows)).reshape(len(input_ids), -1)


@pytest.mark.parametrize("rows_of_tokens", [False, True])
@pytest.mark.parametrize("name", ["attention_mask", "mask", "sentence_mask"])
def test_padding_of_rows_that_are_not_those_of_the_batch_is_warned_of(name, rows_of_tokens):
    """Multiple choice, sentences of documents, frames of videos: padding was counted without a word."""
    torch.manual_seed(0)
    model = Documents(name, rows_of_tokens)
    mask = (torch.arange(8) < torch.randint(2, 9, (40, 5, 1))).long()
    batch = {"input_ids": torch.randint(1, 30, (40, 5, 8)) * mask, name: mask}
    with pytest.warns(UserWarning, match=f"'{name}' seems to mark padding, which is counted as data"):
        assert FeatureStatistics.estimate(model, model.layer, [batch]).count == 40 * 5 * 8
    named = FeatureStatistics.estimate(
        model,
        model.layer,
        [batch],
        mask_func=lambda b: b[name].flatten() if rows_of_tokens else b[name].flatten(0, 1),
    )
    assert named.count == int(mask.sum())


def test_a_causal_mask_is_not_taken_for_padding():
    torch.manual_seed(0)
    model = Documents("mask", False)
    batch = {"input_ids": torch.randint(1, 30, (60, 4, 5)), "mask": torch.ones(5, 5).tril()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FeatureStatistics.estimate(model, model.layer, [batch])


def test_lengths_of_rows_of_tokens_are_warned_of():
    torch.manual_seed(0)
    model = Documents("lengths", True)
    batch = {"input_ids": torch.randint(1, 30, (40, 1, 8)), "lengths": torch.randint(2, 9, (40,))}
    with pytest.warns(UserWarning, match="'lengths' seems to mark padding"):
        FeatureStatistics.estimate(model, model.layer, [batch])


def test_regions_beside_a_text_have_not_its_mask():
    """As LXMERT: as many regions of an image as the text has tokens, and none of them is padding."""

    class VisionText(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.text = nn.Embedding(30, 6), nn.Linear(6, 6)
            self.visual, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, input_ids, regions, attention_mask):
            text, weights = self.text(self.words(input_ids)), attention_mask.unsqueeze(2)
            return self.head((text * weights).sum(1) / weights.sum(1) + self.visual(regions).mean(1))

    torch.manual_seed(0)
    model = VisionText()
    mask = (torch.arange(12) < torch.randint(3, 13, (200, 1))).long()
    batch = {"input_ids": torch.randint(1, 30, (200, 12)), "regions": torch.randn(200, 12, 4), "attention_mask": mask}
    with pytest.warns(UserWarning, match="layer visual gives .* other positions"):
        assert FeatureStatistics.estimate(model, model.visual, [batch]).count == 200 * 12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FeatureStatistics.estimate(model, model.text, [batch]).count == int(mask.sum())


class OtherOrders(nn.Module):
    """Layers that have the sizes of a mask, in its order and in others."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(30, 6), nn.Linear(24, 2)
        self.same, self.rows = nn.GRU(6, 6, batch_first=True), nn.Linear(6, 6)
        self.flipped = nn.GRU(6, 6, batch_first=True)
        self.by_length, self.time_first = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids)
        order = attention_mask.sum(1).argsort(descending=True)
        layers = [
            self.same(x)[0],
            self.flipped(x.flip(1))[0].flip(1),
            self.by_length(x[order])[order.argsort()],
            self.time_first(x.transpose(0, 1).reshape(-1, 6)).reshape(x.shape[1], -1, 6).transpose(0, 1),
        ]
        self.rows(x.reshape(-1, 6))
        weights = attention_mask.unsqueeze(2)
        return self.head((torch.cat(layers, 2) * weights).sum(1) / weights.sum(1))


@pytest.mark.parametrize("name", ["same", "rows", "flipped", "by_length", "time_first"])
@pytest.mark.parametrize("left", [False, True])
def test_a_mask_is_not_used_for_positions_in_another_order(name, left):
    """The sizes are those of the mask in all of them; its padding was taken away at other places."""
    torch.manual_seed(0)
    model = OtherOrders()
    mask = (torch.arange(10) < torch.randint(3, 11, (200, 1))).long()
    mask = mask.flip(1) if left else mask
    batch = {"input_ids": torch.randint(1, 30, (200, 10)) * mask, "attention_mask": mask}
    layer = getattr(model, name)
    if name in ("same", "rows"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert FeatureStatistics.estimate(model, layer, [batch]).count == int(mask.sum())
    else:
        with pytest.warns(UserWarning, match=f"layer {name} seems to have the positions of attention_mask in another"):
            assert FeatureStatistics.estimate(model, layer, [batch]).count == 2000


class MeanOfTokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask=None):
        return self.output((self.embedding(input_ids) * attention_mask.unsqueeze(2)).sum(1))


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        lambda model: torch.compile(model, backend="eager"),
        lambda model: peft.get_peft_model(model, peft.LoraConfig(target_modules=["output"])),
    ],
    ids=["DataParallel", "compiled", "PEFT"],
)
def test_the_mask_of_a_tuple_is_found_in_a_model_that_is_wrapped(wrap):
    """Where padding is on the left, and no row is whole, nothing else tells."""
    torch.manual_seed(0)
    model = MeanOfTokens().eval()
    mask = (torch.arange(16) >= 16 - torch.randint(2, 10, (400, 1))).long()
    ids = torch.randint(1, 50, (400, 16)) * mask
    batches = list(zip(ids.split(50), mask.split(50), strict=True))
    expected = FeatureStatistics.estimate(model, model.embedding, batches)
    found = FeatureStatistics.estimate(wrap(model), model.embedding, batches)
    assert found.count == expected.count == int(mask.sum())
    torch.testing.assert_close(found.std, expected.std)
