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
        (lambda: nn.Sequential(nn.Conv2d(3, 16, 1), Residual(16, False), Residual(16, False)), "2", image(16), 1, True),
        (lambda: nn.Sequential(nn.Embedding(30, 16), PreNorm(16), PreNorm(16)), "1", ids(9, 16), -1, False),
        (lambda: nn.Sequential(nn.Embedding(30, 16), PreNorm(16), PreNorm(16)), "2", ids(9, 16), -1, True),
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
