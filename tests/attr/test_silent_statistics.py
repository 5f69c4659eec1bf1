"""Statistics of a layer that counted padding, or had another mask, without a word."""

import warnings

import pytest
import torch
from torch import nn

from captum_iba import FeatureStatistics

IDS = torch.tensor([[1, 2, 0], [3, 0, 0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])
TYPES = torch.zeros_like(IDS)
LOOKS_LIKE = "batches: '.*' seems to mark padding, which is counted as data"
OTHER_POSITIONS = "which of them are padding is not known, and all count. Pass mask_func"


class Embed(nn.Module):
    """A table, and layers behind it whose positions are those of the tokens, or others."""

    def __init__(self):
        super().__init__()
        self.table, self.time_first, self.padded, self.latents = (
            nn.Embedding(9, 4),
            nn.Identity(),
            nn.Identity(),
            nn.Identity(),
        )
        self.queries = nn.Parameter(torch.randn(3, 4))

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        hidden = self.table(input_ids)
        self.time_first(hidden.transpose(0, 1))
        self.padded(nn.functional.pad(hidden, (0, 0, 0, 4 - hidden.shape[1] % 4)))
        return self.latents(torch.softmax(self.queries @ hidden.transpose(1, 2), -1) @ hidden)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Embed().eval()


@pytest.fixture
def silent():
    """No warning but that of few data."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "few observations: the statistics of (a )?layer")
        yield


def tokens(model):
    return model.table(torch.tensor([1, 2, 3])).mean(0)


def test_a_tuple_is_masked_where_a_parameter_is_called_attention_mask(model, silent):
    functions = [model, lambda ids, attention_mask: model(ids, attention_mask)]
    for function in functions:
        statistics = FeatureStatistics.estimate(function, model.table, [(IDS, MASK)])
        torch.testing.assert_close(statistics.mean, tokens(model))
    typed = FeatureStatistics.estimate(lambda ids, types, attention_mask: model(ids), model.table, [(IDS, TYPES, MASK)])
    assert typed.count == 3


@pytest.mark.parametrize("mask", [MASK, MASK.bool(), MASK.flip(1), torch.tensor([[1, 1, 1], [0, 0, 1]])])
def test_a_mask_that_is_not_known_as_one_is_warned_of_once(model, mask):
    batches = [(IDS, TYPES, mask)] * 2
    functions = {True: lambda ids, types, mask: model(ids), False: lambda *all_of_them: model(all_of_them[0])}
    for named, function in functions.items():
        with pytest.warns(UserWarning) as caught:
            found = FeatureStatistics.estimate(function, model.table, batches)
        about = [str(one.message) for one in caught if "seems to mark padding" in str(one.message)]
        # Padding on the left leaves the longest row whole, unless a name says that it is a mask.
        expected = named or not (mask[:, 0] == 0).any() or mask.all(1).any()
        assert len(about) == expected and found.count == 12
        assert not about or "Pass the batches as mappings with 'attention_mask', or mask_func" in about[0]


def test_what_is_no_mask_of_padding_is_not_warned_of(model, silent):
    types = torch.tensor([[0, 0, 1], [0, 1, 1]])
    for other in (types, TYPES, torch.ones_like(IDS), IDS, MASK.float(), torch.tensor([[1, 0, 1], [1, 1, 0]])):
        FeatureStatistics.estimate(lambda ids, *others: model(ids), model.table, [(IDS, other)])
    FeatureStatistics.estimate(
        lambda ids, mask: model(ids), model.table, [(IDS, MASK)], mask_func=lambda batch: batch[1]
    )


def test_a_mapping_with_a_mask_of_another_name_is_warned_of(model):
    with pytest.warns(UserWarning, match=LOOKS_LIKE):
        FeatureStatistics.estimate(lambda ids, mask: model(ids), model.table, [{"ids": IDS, "mask": MASK}])


@pytest.mark.parametrize("name", ["time_first", "padded", "latents"])
def test_a_layer_of_other_positions_gets_no_mask_and_a_warning(model, name):
    batch = {"input_ids": IDS, "attention_mask": MASK}
    layer, seen = getattr(model, name), []
    hook = layer.register_forward_hook(lambda *arguments: seen.append(arguments[2].detach()))
    model(**batch)
    hook.remove()
    with pytest.warns(UserWarning, match=OTHER_POSITIONS):
        found = FeatureStatistics.estimate(model, layer, [batch], feature_dim=-1)
    torch.testing.assert_close(found.mean, seen[0].reshape(-1, 4).mean(0))


@pytest.mark.parametrize("name", ["time_first", "latents"])
def test_where_lengths_coincide_the_mask_of_other_positions_is_not_taken(model, name):
    """Three texts of three tokens: (T, B, D) and three latents have the shape of the mask."""
    ids = torch.cat([IDS, torch.tensor([[4, 0, 0]])])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    with pytest.warns(UserWarning, match=OTHER_POSITIONS):
        found, table = FeatureStatistics.estimate(model, [getattr(model, name), model.table], [batch])
    assert found.count == 9
    torch.testing.assert_close(table.mean, model.table(ids[ids > 0]).mean(0))


def test_without_padding_nothing_is_said_of_layers_of_other_positions(model, silent):
    batch = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    layers = [model.table, model.time_first, model.padded, model.latents]
    assert [one.count for one in FeatureStatistics.estimate(model, layers, [batch], feature_dim=-1)] == [6, 6, 8, 6]
    some = {"input_ids": IDS, "attention_mask": MASK}
    assert FeatureStatistics.estimate(model, model.latents, [some], mask_func=lambda batch: None).count == 6


def test_few_observations_are_warned_of(model):
    batch = {"input_ids": IDS, "attention_mask": MASK}
    with pytest.warns(
        UserWarning, match=r"statistics of layer 'table' come from 3 observations.* expected 1,000 or more"
    ):
        FeatureStatistics.estimate(model, model.table, [batch])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FeatureStatistics.estimate(model, model.table, [{"input_ids": torch.ones(10, 100, dtype=torch.long)}])


def test_the_model_of_statistics_is_saved_loaded_and_merged(tmp_path):
    parts = [FeatureStatistics("a").update(torch.randn(9, 3)) for _ in range(2)]
    assert parts[0].merge(parts[1]).model is None
    parts[0].model = "first"
    parts[0].save(tmp_path / "statistics")
    assert FeatureStatistics.load(tmp_path / "statistics").model == "first"
    assert parts[0].merge(parts[1]).model is None
    parts[1].model = "first"
    assert parts[0].merge(parts[1]).model == "first"
    parts[1].model = "second"
    with pytest.raises(ValueError, match="other was gathered with another model"):
        parts[0].merge(parts[1])
