"""FeatureStatistics: exact, mergeable, stopped at the layer, and safe."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from captum_iba import FeatureStatistics


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3 + 1


@pytest.mark.parametrize(
    ("features", "feature_dim", "rows"),
    [
        (drawn(50, 4), None, lambda f: f),
        (drawn(10, 7, 4), None, lambda f: f.reshape(-1, 4)),
        (drawn(10, 4, 7), 1, lambda f: f.mT.reshape(-1, 4)),
        (drawn(10, 4, 3, 5), 1, lambda f: f.movedim(1, -1).reshape(-1, 4)),
        (drawn(10, 3, 5, 4), -1, lambda f: f.reshape(-1, 4)),
        (drawn(10, 4, 2, 3, 5), 1, lambda f: f.movedim(1, -1).reshape(-1, 4)),
    ],
)
def test_equal_to_the_whole_at_once(features, feature_dim, rows):
    statistics = FeatureStatistics(feature_dim=feature_dim)
    for batch in features.split(3):
        statistics.update(batch)
    flat = rows(features).double()
    torch.testing.assert_close(statistics.mean, flat.mean(0).float())
    torch.testing.assert_close(statistics.std, flat.std(0, correction=0).float())
    assert statistics.count == len(flat)


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 9), st.floats(-1e4, 1e4), st.integers(0, 1000))
def test_halves_merged_equal_the_whole(split, batch, offset, seed):
    features = drawn(41, 3, seed=seed).double() + offset
    parts = [FeatureStatistics("l"), FeatureStatistics("l")]
    for part, rows in zip(parts, (features[:split], features[split:]), strict=False):
        for piece in rows.split(batch):
            part.update(piece)
    merged, whole = parts[0].merge(parts[1]), FeatureStatistics("l").update(features)
    torch.testing.assert_close(merged.mean, whole.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(merged.std, whole.std, rtol=1e-6, atol=1e-6)
    assert merged.count == whole.count


def test_padding_is_left_out_even_if_it_is_not_a_number():
    features = drawn(2, 3, 4)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    broken = torch.where(mask.bool().unsqueeze(-1), features, float("nan"))
    statistics = FeatureStatistics().update(broken, mask)
    torch.testing.assert_close(statistics.mean, torch.stack([features[0, 0], features[0, 1], features[1, 0]]).mean(0))
    assert statistics.count == 3


def test_constant_features_get_the_floor():
    assert FeatureStatistics(min_std=0.5).update(torch.ones(9, 2)).std.tolist() == [0.5, 0.5]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.log = nn.Linear(3, 4), nn.Linear(4, 2), SimpleNamespace(ran=0)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, scale=1.0):
        x = self.norm(self.first(x * scale))
        self.log.ran += 1
        return self.second(x)


def test_estimate_stops_at_the_layer_and_leaves_the_model_as_it_was():
    net, data = Net().train(), drawn(20, 3)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    statistics = FeatureStatistics.estimate(net, net.first, (batch for batch in data.split(6)), layer_call=0)
    torch.testing.assert_close(statistics.mean, net.first(data).mean(0))
    assert statistics.layer == "first"
    assert net.log.ran == 0
    assert net.training and net.norm.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not net.first._forward_hooks


def test_estimate_takes_tensors_tuples_and_mappings_and_several_layers():
    net, data = Net().eval(), drawn(20, 3)
    kinds = [data[:5], (data[5:10], 1.0), {"x": data[10:]}]
    first, second = FeatureStatistics.estimate(net, [net.first, net.second], kinds)
    torch.testing.assert_close(first.mean, net.first(data).mean(0))
    torch.testing.assert_close(second.mean, net(data).mean(0))
    inputs = FeatureStatistics.estimate(net, net.second, [data], attribute_to_layer_input=True)
    torch.testing.assert_close(inputs.mean, net.norm(net.first(data)).mean(0))


def test_attention_mask_of_a_mapping_or_a_function():
    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 4)

        def forward(self, input_ids, attention_mask=None):
            return self.table(input_ids)

    model = Embed()
    ids, mask = torch.tensor([[1, 2, 0], [3, 0, 0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    expected = model.table(torch.tensor([1, 2, 3])).mean(0)
    for batch, function in [({"input_ids": ids, "attention_mask": mask}, None), (ids, lambda b: b > 0)]:
        statistics = FeatureStatistics.estimate(model, model.table, [batch], mask_func=function)
        torch.testing.assert_close(statistics.mean, expected)


def test_a_layer_without_positions_has_no_use_for_an_attention_mask():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.pooler = nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, input_ids, attention_mask):
            return self.pooler((self.table(input_ids) * attention_mask[..., None]).sum(1))

    model = Pooled()
    ids, mask = torch.tensor([[1, 2, 0], [3, 0, 0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": mask}
    tokens, pooled = FeatureStatistics.estimate(model, [model.table, model.pooler], [batch])
    torch.testing.assert_close(tokens.mean, model.table(torch.tensor([1, 2, 3])).mean(0))
    torch.testing.assert_close(pooled.mean, model(**batch).mean(0))


def test_the_last_call_is_the_last_of_every_batch():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.RNNCell(3, 4)

        def forward(self, x):
            state = torch.zeros(len(x), 4)
            for step in x.unbind(1):
                state = self.cell(step, state)
            return state

    model, data = Recurrent(), [drawn(5, 3, 3), drawn(5, 6, 3), drawn(5, 2, 3)]
    last = FeatureStatistics.estimate(model, model.cell, data)
    torch.testing.assert_close(last.mean, torch.cat([model(x) for x in data]).mean(0))
    with pytest.raises(ValueError, match="layer_call has 2 entries, expected one per layer, 1"):
        FeatureStatistics.estimate(model, model.cell, data, layer_call=[0, 1])


def test_saved_and_loaded(tmp_path):
    statistics = FeatureStatistics("encoder.layer.2", min_std=0.1).update(drawn(9, 3))
    statistics.save(tmp_path / "s.safetensors")
    again = FeatureStatistics.load(tmp_path / "s.safetensors", layer="encoder.layer.2")
    assert torch.equal(again.mean, statistics.mean) and torch.equal(again.std, statistics.std)
    assert (again.count, again.layer, again.min_std) == (9, "encoder.layer.2", 0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]
    with pytest.raises(ValueError, match=r"statistics of layer 'encoder.layer.2', expected layer 'other'"):
        FeatureStatistics.load(tmp_path / "s.safetensors", layer="other")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="is not a safetensors file of statistics"):
        FeatureStatistics.load(tmp_path / "text")
    save_file({"mean": torch.zeros(2)}, tmp_path / "weights")
    with pytest.raises(ValueError, match="has the format None"):
        FeatureStatistics.load(tmp_path / "weights")
    with pytest.raises(FileNotFoundError):
        FeatureStatistics.load(tmp_path / "nothing")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "s.safetensors"
    FeatureStatistics("old").update(drawn(9, 3)).save(target)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        FeatureStatistics("new").update(drawn(9, 3)).save(target)
    monkeypatch.undo()
    assert FeatureStatistics.load(target).layer == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]


def test_files_without_a_tensor_and_statistics_of_other_floors_are_refused(tmp_path):
    save_file({"mean": torch.zeros(2)}, path := tmp_path / "part.st", {"format": "captum_iba.FeatureStatistics/1"})
    with pytest.raises(ValueError, match=r"part\.st' has .*mean.*, expected mean and squares"):
        FeatureStatistics.load(path)
    one, other = (FeatureStatistics("a", min_std=floor).update(drawn(9, 3)) for floor in (0.01, 5.0))
    with pytest.raises(ValueError, match=r"other has the min_std 5.0, expected 0\.01"):
        one.merge(other)
    with pytest.raises(ValueError, match="min_std is inf, expected a positive number"):
        FeatureStatistics(min_std=float("inf"))


def test_errors():
    with pytest.raises(ValueError, match="hold no data"):
        _ = FeatureStatistics().mean
    with pytest.raises(ValueError, match="hold no data"):
        FeatureStatistics.estimate(nn.Linear(3, 2), nn.Linear(3, 2), [])
    with pytest.raises(ValueError, match="min_std is 0, expected a positive number"):
        FeatureStatistics(min_std=0)
    statistics = FeatureStatistics().update(drawn(4, 3))
    with pytest.raises(ValueError, match="features of batch 1 hold NaN or infinity"):
        statistics.update(torch.full((2, 3), float("inf")))
    with pytest.raises(ValueError, match="5 features; the batches before had 3"):
        statistics.update(drawn(4, 5))
    with pytest.raises(ValueError, match=r"expected \(B, D\), \(B, T, D\), or feature_dim=1"):
        statistics.update(drawn(3))
    with pytest.raises(ValueError, match=r"shape \(2, 3, 4, 5\) and feature_dim is None, expected"):
        FeatureStatistics().update(drawn(2, 3, 4, 5))
    with pytest.raises(ValueError, match="feature_dim is 'last', expected an integer"):
        FeatureStatistics(feature_dim="last")
    with pytest.raises(ValueError, match="other has the feature_dim 1, expected -1"):
        FeatureStatistics(feature_dim=-1).merge(FeatureStatistics(feature_dim=1))
    with pytest.raises(ValueError, match=r"mask has the shape \(4, 2\)"):
        statistics.update(drawn(4, 5, 3), torch.ones(4, 2))
    with pytest.raises(ValueError, match="other is of layer 'b'"):
        FeatureStatistics("a").merge(FeatureStatistics("b"))
    assert statistics.count == 4
    net = Net()
    with pytest.raises(ValueError, match="Conv2d did not run in this forward pass"):
        FeatureStatistics.estimate(net, nn.Conv2d(1, 1, 1), [drawn(4, 3)])
    with pytest.raises(TypeError, match="batches is a tensor, expected an iterable of batches"):
        FeatureStatistics.estimate(net, net.first, drawn(4, 3))
