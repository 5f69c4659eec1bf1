"""What is inferred of data and models: the dimension of the features, padding, places of statistics, losses."""

import warnings

import pytest
import torch
from torch import nn

from captum_iba import FeatureStatistics, InformationBottleneckAttribution

CANNOT_BE_TOLD = r"feature_dim is None, .* cannot be told; expected feature_dim=1"


def seeded(make, *arguments):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(*arguments).eval()


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def ids(rows, length, most=30):
    return torch.randint(1, most, (rows, length), generator=torch.Generator().manual_seed(0))


def estimated(model, layer, *batches, **more):
    """Statistics, and what was said but for few data."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        statistics = FeatureStatistics.estimate(model, layer, batches, **more)
    return statistics, [str(one.message) for one in caught if "observations (examples" not in str(one.message)]


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def transposed():
    return Lambda(lambda x: x.transpose(1, 2))


# 1. The dimension of the features.


def text_cnn(width=16):
    return nn.Sequential(
        nn.Embedding(30, width), transposed(), nn.Dropout(0.1), nn.Sequential(nn.Conv1d(width, 8, 3, padding=1))
    )


def signal_transformer(width=16):
    block = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True)
    return nn.Sequential(nn.Conv1d(4, width, 3, padding=1), transposed(), nn.Dropout(0.1), block)


def gates(width=16):
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.narrow, self.wide = nn.Linear(width, 4), nn.Linear(4, width)

        def forward(self, x):
            return x * self.wide(torch.relu(self.narrow(x.mean((2, 3)))))[..., None, None]

    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), Gate())


class ConvNextBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU())
        self.out = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.out(self.inner(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def convnext(width=16):
    return nn.Sequential(nn.Conv2d(3, width, 1), ConvNextBlock(width), nn.Sequential(nn.Conv2d(width, 8, 2)))


class Residual(nn.Module):
    def __init__(self, width, in_place):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=in_place)

    def forward(self, x):
        return self.relu(self.norm(self.conv(x)) + x)


class PreNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.inner(self.norm(x))


class Tokens(nn.Module):
    """Patches, and a token before them."""

    def __init__(self, width):
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, width, 2, stride=2), nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, x):
        patches = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(x), 1, -1), patches], 1)


def frames():
    """(B, 16, T, 5) to (B, T, 16 * 5)."""
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), Lambda(lambda x: x.permute(0, 2, 1, 3).flatten(2)))


def image(size, channels=3):
    return drawn(4, channels, size, size)


@pytest.mark.parametrize(
    ("make", "name", "batch", "expected", "at_input"),
    [
        (text_cnn, "3", ids(9, 20), 1, True),
        (text_cnn, "3", ids(9, 16), 1, True),
        (text_cnn, "2", ids(9, 16), 1, False),
        (signal_transformer, "3", drawn(9, 4, 20), -1, True),
        (signal_transformer, "3", drawn(9, 4, 16), -1, True),
        (signal_transformer, "2", drawn(9, 4, 16), -1, False),
        (signal_transformer, "3", drawn(9, 4, 16), -1, False),
        (gates, "3", image(5), 1, False),
        (gates, "3", image(4), 1, False),
        (gates, "2", image(16), 1, False),
        (gates, "3", image(16), None, False),
        (convnext, "1", image(5), 1, False),
        (convnext, "1", image(16), None, False),
        (convnext, "2", image(5), 1, True),
        (convnext, "2", image(16), None, True),
        (
            lambda: nn.Sequential(nn.Conv1d(4, 64, 3, padding=1), nn.Conv1d(64, 32, 1), transposed()),
            "",
            drawn(9, 4, 50),
            -1,
            False,
        ),
        (
            lambda: nn.Sequential(nn.Conv1d(4, 64, 3, padding=1), nn.Conv1d(64, 32, 1), transposed()),
            "",
            drawn(9, 4, 64),
            -1,
            False,
        ),
        (lambda: nn.Sequential(nn.Embedding(30, 64), nn.Linear(64, 32), transposed()), "", ids(9, 64), 1, False),
        (frames, "", drawn(4, 1, 20, 5), None, False),
        (frames, "", drawn(4, 1, 16, 5), None, False),
        (lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Unfold(2, stride=2)), "1", image(8), 1, False),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 16, 1), Lambda(lambda x: nn.functional.unfold(x, 2, stride=2))),
            "1",
            image(8),
            None,
            False,
        ),
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.LayerNorm([8, 6, 6])), "1", image(6), 1, True),
        (lambda: nn.Sequential(transposed(), nn.LayerNorm([8, 6])), "1", drawn(4, 6, 8), None, True),
        (lambda: nn.Sequential(nn.Conv2d(3, 16, 1), Residual(16, True)), "1", image(16), 1, False),
        (lambda: nn.Sequential(nn.Conv2d(3, 16, 1), Residual(16, False)), "1", image(16), 1, False),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 16, 1), Residual(16, False), Residual(16, False)),
            "2",
            image(16),
            None,
            True,
        ),
        (lambda: nn.Sequential(nn.Embedding(30, 16), PreNorm(16), PreNorm(16)), "1", ids(9, 16), -1, False),
        (lambda: nn.Sequential(nn.Embedding(30, 16), PreNorm(16), PreNorm(16)), "2", ids(9, 16), None, True),
        (
            lambda: nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 16), nn.GELU(), nn.Dropout()),
            "3",
            ids(9, 16),
            -1,
            False,
        ),
        (lambda: nn.Sequential(Tokens(24), PreNorm(24)), "0", image(8), -1, False),
        (lambda: nn.Sequential(Tokens(24), PreNorm(24)), "1", image(8), -1, False),
        (lambda: nn.Sequential(nn.Linear(6, 32), nn.GLU()), "1", drawn(9, 7, 6), None, False),
    ],
)
def test_the_dimension_is_told_by_more_than_sizes_that_coincide(make, name, batch, expected, at_input):
    model = seeded(make)
    layer = model.get_submodule(name)
    more = {"attribute_to_layer_input": at_input}
    if expected is None:
        with pytest.raises(ValueError, match=CANNOT_BE_TOLD):
            estimated(model, layer, batch, **more)
        return
    statistics, _ = estimated(model, layer, batch, **more)
    named, _ = estimated(model, layer, batch, feature_dim=expected, **more)
    assert statistics.feature_dim == expected
    torch.testing.assert_close(statistics.mean, named.mean)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        iba = InformationBottleneckAttribution(lambda x: model(x).flatten(1), layer)  # no statistics: infers again
        settings = {"target": 0, "n_steps": 2, "n_samples": 1, **more}
        bits = iba.attribute(batch[:2], **settings)
        torch.testing.assert_close(bits, iba.attribute(batch[:2], feature_dim=expected, **settings))


def test_a_known_dimension_decides_where_a_later_batch_does_not():
    model = seeded(convnext)
    statistics, _ = estimated(model, model[1], image(5), image(16))
    assert (statistics.feature_dim, statistics.count) == (1, 4 * (25 + 256))
    with pytest.raises(ValueError, match=CANNOT_BE_TOLD):
        estimated(model, model[1], image(16), image(5))


def test_an_input_of_the_model_has_the_width_that_the_layer_wants():
    more = {"attribute_to_layer_input": True}
    stem = seeded(lambda: nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Flatten()))
    assert estimated(stem, stem[0], image(6), **more)[0].feature_dim == 1
    model = seeded(lambda: nn.Sequential(PreNorm(8), nn.Linear(8, 2)))
    assert estimated(model, model[0], drawn(9, 5, 8), **more)[0].feature_dim == -1
    other = seeded(lambda: nn.Sequential(nn.Sequential(transposed(), nn.Conv1d(8, 4, 1)), nn.Flatten()))
    for net, batch in ((model, drawn(9, 8, 8)), (other, drawn(9, 5, 8)), (other, drawn(9, 8, 8))):
        with pytest.raises(ValueError, match=CANNOT_BE_TOLD):
            estimated(net, net[0], batch, **more)


def test_freed_memory_that_is_used_again_is_no_evidence():
    """A copy of the transposed activation that lies where an activation lay before."""

    def copied(x):
        transposed_copy = (x * 2).transpose(1, 2).contiguous()
        del x
        return transposed_copy + 1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.layer = nn.Conv1d(4, 16, 3, padding=1), Lambda(copied)

        def forward(self, x):
            return self.layer(self.stem(x))

    model = seeded(Net)
    for _ in range(3):
        with pytest.raises(ValueError, match=CANNOT_BE_TOLD):
            estimated(model, model.layer, drawn(9, 4, 16))


def test_a_transposed_copy_is_no_residual_sum():
    def copied():
        return Lambda(lambda x: x.transpose(1, 2).contiguous())

    model = seeded(lambda: nn.Sequential(nn.Conv1d(4, 16, 1), nn.Sequential(nn.Conv1d(16, 16, 1), copied()), copied()))
    for layer, at_input in ((model[1], False), (model[2], True)):
        with pytest.raises(ValueError, match=CANNOT_BE_TOLD):
            estimated(model, layer, drawn(9, 4, 16), attribute_to_layer_input=at_input)


def test_a_subclass_that_transposes_is_not_taken_for_its_class():
    class TimeFirst(nn.Conv1d):
        def forward(self, x):
            return super().forward(x.transpose(1, 2)).transpose(1, 2).contiguous()

    model = seeded(lambda: nn.Sequential(nn.Linear(4, 8), TimeFirst(8, 16, 3, padding=1)))
    for length in (16, 20):
        with pytest.raises(ValueError, match=CANNOT_BE_TOLD):
            estimated(model, model[1], drawn(9, length, 4))


def test_layer_normalization_of_channels_that_come_first():
    class Norm(nn.LayerNorm):
        """As ConvNextLayerNorm of transformers."""

        data_format = "channels_first"

        def forward(self, x):
            return super().forward(x.movedim(1, -1)).movedim(-1, 1)

    model = seeded(lambda: nn.Sequential(nn.Conv2d(3, 8, 1), Norm(8), nn.Flatten(), nn.Linear(8 * 64, 2)))
    for at_input in (True, False):
        assert estimated(model, model[1], image(8), attribute_to_layer_input=at_input)[0].feature_dim == 1


# 2. Padding.

LOOKS_LIKE = "seems to mark padding"
LENGTHS = torch.arange(40) % 5 + 2
IDS, KEPT = ids(40, 6), (torch.arange(6) < LENGTHS[:, None]).long()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(30, 8), nn.Linear(8, 8)

    def forward(self, input_ids, attention_mask=None):
        return self.layer(self.table(input_ids)).mean(1)


def test_masks_inside_of_batches_are_taken():
    model, batch = seeded(Encoder), {"input_ids": IDS, "attention_mask": KEPT}
    expected, _ = estimated(model, model.layer, batch)
    assert expected.count == int(KEPT.sum())
    batches = {
        "tuple": (lambda encoded: model(**encoded), (batch,)),
        "mapping": (lambda encoded: model(**encoded), {"encoded": batch}),
        "deeper": (lambda everything: model(**everything[0]["text"]), ([{"text": batch}, 3],)),
    }
    for function, nested in batches.values():
        found, said = estimated(function, model.layer, nested)
        assert (found.count, said) == (expected.count, [])
        torch.testing.assert_close(found.mean, expected.mean)


def test_two_masks_inside_of_a_batch_are_warned_of():
    model = seeded(Encoder)
    pair = {"one": {"input_ids": IDS, "attention_mask": KEPT}, "two": {"input_ids": IDS, "attention_mask": 1 - KEPT}}
    found, said = estimated(lambda one, two: model(**one) + model(**two), model.layer, pair)
    assert found.count == IDS.numel() and LOOKS_LIKE in said[0]


def test_a_mask_in_an_inner_tuple_is_warned_of():
    model = seeded(Encoder)
    _, said = estimated(lambda pair: model(pair[0]), model.layer, ((IDS, KEPT),))
    assert len(said) == 1 and LOOKS_LIKE in said[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mask", KEPT[..., None]),
        ("mask", KEPT[:, None]),
        ("mask", (1 - KEPT) * -1e9),
        ("attn_mask", ((1 - KEPT) * torch.finfo(torch.float32).min)[:, None, None]),
        ("pad_mask", KEPT[:, None] == 0),
        ("text_mask", KEPT[:, None] * KEPT[..., None]),
        ("lens", LENGTHS),
        ("x_len", LENGTHS),
        ("lengths", LENGTHS.tolist()),
        ("len_of_texts", LENGTHS / 6),
    ],
    ids=str,
)
def test_masks_and_lengths_by_their_names_are_warned_of(name, value):
    model = seeded(Encoder)
    found, said = estimated(lambda input_ids, **more: model(input_ids), model.layer, {"input_ids": IDS, name: value})
    assert found.count == IDS.numel()
    assert len(said) == 1 and LOOKS_LIKE in said[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("causal_mask", torch.ones(6, 6).tril().expand(40, 6, 6)),
        ("mask", torch.ones(40, 1, 6)),
        ("mask", torch.ones(6, 6).tril()),
        ("lengths", [6] * 40),
        ("lengths", torch.full((40,), 6)),
        ("valence", torch.arange(40)),
        ("length_penalty", 2.0),
        ("labels", torch.arange(40)),
        ("target_lengths", LENGTHS),
        ("decoder_mask", KEPT[:, None]),
        ("features", drawn(40, 1, 6)),
    ],
    ids=str,
)
def test_other_arguments_are_not_warned_of(name, value):
    model = seeded(Encoder)
    _, said = estimated(lambda input_ids, **more: model(input_ids), model.layer, {"input_ids": IDS, name: value})
    assert said == []


class Heads(nn.Module):
    """As the normalization of queries in Qwen3: (B, T, H, d)."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(30, 12), nn.LayerNorm(4)

    def forward(self, input_ids, attention_mask):
        return self.norm(self.table(input_ids).unflatten(-1, (3, 4))).mean((1, 2))


def test_the_heads_of_a_token_have_its_mask():
    model = seeded(Heads)
    found, said = estimated(model, model.norm, {"input_ids": IDS, "attention_mask": KEPT})
    assert (found.count, said) == (3 * int(KEPT.sum()), [])
    tokens = model.norm(model.table(IDS[KEPT.bool()]).unflatten(-1, (3, 4)))
    torch.testing.assert_close(found.mean, tokens.mean((0, 1)).detach())


def test_channels_that_come_first_have_the_mask_of_their_positions():
    model = seeded(text_cnn)
    batch = {"ids": IDS, "attention_mask": KEPT}
    found, said = estimated(lambda ids, attention_mask: model(ids), model[3], batch)
    assert (found.count, found.feature_dim, said) == (int(KEPT.sum()), 1, [])
    torch.testing.assert_close(found.mean, model(IDS).mT[KEPT.bool()].mean(0).detach())


@pytest.mark.parametrize(("rows", "warned"), [(40, 0), (6, 1)])
def test_a_mask_that_is_taken_by_its_shape_alone_is_warned_of_where_sizes_coincide(rows, warned):
    model = seeded(Encoder)

    def of_one_length(input_ids, attention_mask):
        assert input_ids.shape[1] == 6
        return model(input_ids)

    batch = {"input_ids": IDS[:rows], "attention_mask": KEPT[:rows]}
    found, said = estimated(of_one_length, model.layer, batch)
    assert found.count == int(KEPT[:rows].sum())
    assert len(said) == warned and all("the mask is used by its shape alone" in one for one in said)


# 3. Statistics that are updated by hand.


@pytest.mark.parametrize(
    "mask", [torch.tensor([[0.0, -1e9]]), torch.tensor([[1.0, float("nan")]]), torch.tensor([[1, -1]])]
)
def test_masks_that_are_added_to_scores_are_refused(mask):
    statistics = FeatureStatistics().update(drawn(2, 2, 3))
    with pytest.raises(ValueError, match="mask holds negative numbers or NaN, expected True or 1"):
        statistics.update(drawn(1, 2, 3), mask)
    assert statistics.count == 4


def test_a_scripted_module_in_a_layer_tells_nothing():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 4), torch.jit.script(nn.ReLU())))
    assert estimated(model, model[0], drawn(9, 5, 3), attribute_to_layer_input=True)[0].feature_dim == -1


def test_three_dimensions_settle_where_the_features_are():
    statistics = FeatureStatistics().update(drawn(2, 3))
    assert statistics.feature_dim is None
    assert statistics.update(drawn(2, 5, 3)).feature_dim == -1
    statistics = FeatureStatistics()
    with pytest.raises(ValueError, match="hold NaN"):
        statistics.update(torch.full((2, 5, 3), float("nan")))
    assert statistics.feature_dim is None
    # Read with the features last, and not taken for those of channels that come first.
    layer = nn.Conv1d(2, 5, 1)
    net = nn.Sequential(layer, nn.Flatten(), nn.Linear(25, 2)).eval()
    x = drawn(9, 2, 5)
    statistics = FeatureStatistics().update(layer(x).detach())
    iba = InformationBottleneckAttribution(net, layer, statistics=statistics)
    bits = iba.attribute(x, target=0, n_steps=0)
    torch.testing.assert_close(bits, iba.attribute(x, target=0, n_steps=0, feature_dim=-1))
    with pytest.raises(ValueError, match="feature_dim is 1, but statistics were gathered with -1"):
        iba.attribute(x, target=0, n_steps=0, feature_dim=1)


# 4. Statistics of another place.


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = PreNorm(8), PreNorm(8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.second(self.second(self.first(x))).mean(1))


@pytest.fixture
def twice():
    return seeded(Twice)


def attributed(model, layer, statistics, **more):
    return InformationBottleneckAttribution(model, layer, statistics=statistics).attribute(
        drawn(2, 5, 8), target=0, **{"n_steps": 2, **more}
    )


def test_statistics_of_the_output_are_refused_at_the_input(twice, tmp_path):
    data = drawn(300, 5, 8)
    for at_input in (True, False):
        statistics, _ = estimated(twice, twice.first, data, attribute_to_layer_input=at_input)
        assert statistics.at_input is at_input
        statistics.save(tmp_path / "statistics")
        for one in (statistics, FeatureStatistics.load(tmp_path / "statistics")):
            with pytest.raises(ValueError, match=f"but attribute_to_layer_input is {not at_input}; expected"):
                attributed(twice, twice.first, one, attribute_to_layer_input=not at_input)
            attributed(twice, twice.first, one, attribute_to_layer_input=at_input)
    # The noise as released has nothing of them.
    inputs, _ = estimated(twice, twice.first, data, attribute_to_layer_input=True)
    attributed(twice, twice.first, inputs, preset="as_released")


def test_statistics_of_another_layer_are_refused(twice):
    both, _ = estimated(twice, [twice.first, twice.second], drawn(300, 5, 8))
    layers = [twice.first, twice.second]
    attributed(twice, layers, both)
    with pytest.raises(ValueError, match="are of layer 'second', but the layer is 'first'; expected statistics of"):
        attributed(twice, layers, both[::-1])
    with pytest.raises(ValueError, match="statistics are of layer 'first', but the layer is 'second'"):
        attributed(twice, twice.second, both[0])
    wrapped = lambda x: twice(x)  # noqa: E731
    attributed(wrapped, layers, both)
    with pytest.raises(ValueError, match="are of layer 'second', but the layer is 'first'; expected statistics of"):
        attributed(wrapped, layers, both[::-1])
    outer = torch.nn.Sequential(twice)  # names the same layer "0.first"
    attributed(lambda x: outer(x) + 0 * twice(x), layers, both)
    both[0].layer = "of another model"
    attributed(twice, twice.second, both[0])


def test_statistics_of_another_call_are_refused(twice, tmp_path):
    statistics, _ = estimated(twice, twice.second, drawn(300, 5, 8))
    assert statistics.call == -1
    statistics.save(tmp_path / "statistics")
    for one in (statistics, FeatureStatistics.load(tmp_path / "statistics")):
        with pytest.raises(ValueError, match="call -1, but layer_call is 0, and the layer ran 2 times; expected"):
            attributed(twice, twice.second, one, layer_call=0)
        torch.testing.assert_close(
            attributed(twice, twice.second, one), attributed(twice, twice.second, one, layer_call=1)
        )
    only, _ = estimated(twice, twice.first, drawn(300, 5, 8))
    attributed(twice, twice.first, only, layer_call=0)


def test_statistics_of_other_places_are_not_merged(twice):
    one, _ = estimated(twice, twice.second, drawn(300, 5, 8))
    for name, value in (("at_input", True), ("call", 0)):
        other, _ = estimated(twice, twice.second, drawn(300, 5, 8))
        setattr(other, name, value)
        with pytest.raises(ValueError, match=f"other has {name}={value}, expected statistics of the same place"):
            one.merge(other)
    by_hand = FeatureStatistics("second").update(drawn(9, 5, 8))
    assert (by_hand.at_input, by_hand.call) == (None, None)
    merged = by_hand.merge(one)
    assert (merged.at_input, merged.call) == (False, -1)


# 5. Losses.


def said_of(output, target, loss):
    layer = nn.Linear(8, 8)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(record=True) as caught:
        torch.manual_seed(0)
        nn.init.normal_(layer.weight)
        warnings.simplefilter("always")
        statistics = FeatureStatistics().update(drawn(300, 8))
        iba = InformationBottleneckAttribution(lambda x: output(layer(x)), layer, statistics=statistics)
        for _ in range(2):
            iba.attribute(drawn(3, 8), target=target, loss=loss, n_steps=2)
    return [str(one.message) for one in caught]


def test_probabilities_where_logits_are_expected_are_warned_of():
    said = said_of(lambda x: x[:, :1].sigmoid(), 1, "binary_cross_entropy")
    assert len(said) == 1
    assert "loss is 'binary_cross_entropy', which expects logits" in said[0] and "loss='probability'" in said[0]
    assert said_of(lambda x: x[:, :1], 1, "binary_cross_entropy") == []
    assert said_of(lambda x: x[:, :1].sigmoid(), 0, "probability") == []


@pytest.mark.parametrize("output", [lambda x: x[:, 0], lambda x: x[:, :1], lambda x: x.view(3, 8, 1)])
def test_cross_entropy_of_one_class_is_refused(output):
    with pytest.raises(
        ValueError, match="loss is 'cross_entropy', but forward_func gives the shape .* at least 2 classes"
    ):
        said_of(output, None, "cross_entropy")


def test_classes_of_images_that_come_first_are_warned_of():
    said = said_of(lambda x: x.view(-1, 2, 2, 2), (0, 1, 1), "cross_entropy")
    assert len(said) == 1 and "are taken from the last dimension: 2 of them" in said[0]
    assert said_of(lambda x: x.view(-1, 4, 2), (0, 1), "cross_entropy") == []


# Modules that mix positions, and outputs that are no features.


class TokenMixing(nn.Module):
    """The token-mixing block of an MLP-Mixer: linear layers over the positions."""

    def __init__(self, length, width):
        super().__init__()
        self.norm, self.mix = (
            nn.LayerNorm(width),
            nn.Sequential(nn.Linear(length, 16), nn.GELU(), nn.Linear(16, length)),
        )

    def forward(self, x):
        return x + self.mix(self.norm(x).transpose(1, 2)).transpose(1, 2)


class SpatialGating(nn.Module):
    """The gate of a gMLP: a convolution whose channels are positions."""

    def __init__(self, length, width):
        super().__init__()
        self.up, self.gate = nn.Linear(width, 2 * width), nn.Conv1d(length, length, 1)

    def forward(self, x):
        u, v = self.up(x).chunk(2, -1)
        return u * self.gate(v)


class AttentionPooling(nn.Module):
    """Attention by a convolution with one channel per query, as in NetVLAD."""

    def __init__(self, width, n_queries):
        super().__init__()
        self.attention = nn.Conv1d(width, n_queries, 1)

    def forward(self, x):
        return self.attention(x).softmax(-1) @ x.transpose(1, 2)


class ChannelsFirstMLP(nn.Module):
    """A pointwise MLP on (B, C, T)."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, 16), nn.Linear(16, width)

    def forward(self, x):
        return x + self.second(nn.functional.gelu(self.first(x.transpose(1, 2)))).transpose(1, 2)


@pytest.mark.parametrize(
    ("make", "name", "batch"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 12), TokenMixing(7, 12)), "1", drawn(9, 7, 4)),
        (lambda: nn.Sequential(nn.Linear(4, 12), TokenMixing(7, 12), nn.Dropout(0.1)), "2", drawn(9, 7, 4)),
        (lambda: nn.Sequential(nn.Linear(4, 12), SpatialGating(7, 12)), "1", drawn(9, 7, 4)),
        (lambda: nn.Sequential(nn.Conv1d(4, 12, 1), AttentionPooling(12, 3)), "1", drawn(9, 4, 7)),
        (lambda: nn.Sequential(nn.Conv1d(4, 8, 1), ChannelsFirstMLP(8)), "1", drawn(9, 4, 8)),
        (lambda: nn.Sequential(nn.Conv1d(4, 8, 1), ChannelsFirstMLP(8), ChannelsFirstMLP(8)), "2", drawn(9, 4, 8)),
    ],
)
def test_modules_that_mix_positions_tell_nothing(make, name, batch):
    model = seeded(make)
    with pytest.raises(ValueError, match=CANNOT_BE_TOLD):
        estimated(model, model.get_submodule(name), batch)


@pytest.mark.parametrize("layer", [nn.Dropout1d(0.1), nn.Dropout2d(0.1), nn.AdaptiveAvgPool2d((3, None))], ids=repr)
def test_layers_of_any_dimension_go_by_their_input(layer):
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 12), layer))
    try:
        statistics, _ = estimated(model, layer, drawn(9, 7, 4))
    except ValueError as error:
        assert "cannot be told" in str(error)
    else:
        assert statistics.feature_dim == -1


def test_a_batch_is_not_written_into_by_the_search_for_positions():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 8)

        def forward(self, x, attention_mask):
            return self.layer(x.mul_(2))

    x, mask = torch.ones(3, 6, 4), torch.ones(3, 6, dtype=torch.long)
    mask[0, 4:] = 0
    model = seeded(Writes)
    estimated(model, model.layer, {"x": x, "attention_mask": mask})
    assert torch.equal(x, torch.ones_like(x))
