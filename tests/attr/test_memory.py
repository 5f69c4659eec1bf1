"""Memory runs out: the examples at hand are done again with fewer rows, and nothing that was finished is lost."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from captum_iba import FeatureStatistics, InformationBottleneckAttribution

MUCH = 1 << 50  # bytes, which no machine gives


class Hungry(nn.Module):
    """Passes of more rows than it has room for fail as they do when memory has run out."""

    def __init__(self, room):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)
        self.room = room
        self.log = SimpleNamespace(rows=[])  # what forward writes into attributes of its own is put back

    @property
    def rows(self):
        return self.log.rows

    def forward(self, x):
        hidden = self.layer(x).tanh()
        self.rows.append(len(hidden))
        if len(hidden) > self.room:
            torch.empty(MUCH, dtype=torch.uint8)
        return self.head(hidden.mean(1))


def attribution(room):
    model = Hungry(room).eval()
    x = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(1))
    statistics = FeatureStatistics.estimate(model.layer, model.layer, [x])
    model.rows.clear()
    return model, x, InformationBottleneckAttribution(model, model.layer, statistics=statistics)


@pytest.mark.parametrize("room", [5, 7, 11])
def test_fewer_rows_and_the_same_result(room, capsys):
    _, x, roomy = attribution(1000)
    expected = roomy.attribute(x, target=1, n_steps=20, n_samples=2, replay=False)
    model, _, iba = attribution(room)
    found = iba.attribute(x, target=1, n_steps=20, n_samples=2, replay=False, show_progress=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert sum(rows > room for rows in model.rows) <= 3  # found once, not for every example
    assert "200/200" in capsys.readouterr().err  # 5 examples, 20 steps, 2 draws


def test_one_example_that_does_not_fit():
    model, x, iba = attribution(0)
    before = model.training, dict(model.named_modules())["layer"]._forward_hooks.copy()
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        iba.attribute(x, target=1, replay=False)
    assert (model.training, model.layer._forward_hooks) == before


def test_another_error_is_not_tried_again():
    model, x, iba = attribution(1000)
    model.head.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("something else")))
    with pytest.raises(RuntimeError, match="something else"):
        iba.attribute(x, target=1)
    assert len(model.rows) == 1


def test_on_a_cpu_the_second_try_is_never_larger_than_the_first():
    torch.manual_seed(0)
    model = Hungry(7).eval()
    model.layer, model.head = nn.Linear(6, 512), nn.Linear(512, 3)
    x = torch.randn(8, 150, 6)  # 2.3 MiB of features: one draw a pass
    with pytest.warns(UserWarning, match="statistics is None"):
        iba = InformationBottleneckAttribution(model, model.layer)
        iba.attribute(x, target=1, preset="paper", n_steps=1, replay=False)
    assert model.rows[0] == max(model.rows) == 8  # the check of independence runs two copies


def test_memory_that_runs_out_while_replay_is_checked():
    model, x, iba = attribution(9)  # the check takes 10 rows, for 5 examples
    whole = InformationBottleneckAttribution(model, model.layer, statistics=iba.statistics)
    bits = iba.attribute(x, target=1, n_samples=1, complement=0.0)
    expected = whole.attribute(x, target=1, n_samples=1, complement=0.0, replay=False)
    torch.testing.assert_close(bits, expected, rtol=1e-4, atol=1e-4)
