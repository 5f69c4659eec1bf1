"""Settings: one list of them, validated in one place, resolved from presets and overrides."""

from dataclasses import FrozenInstanceError, fields

import pytest

from captum_iba.attr import PRESETS, BottleneckSettings, resolve_settings
from captum_iba.attr.settings import _CHECKS, SettingsOverrides, preset_values

NAMES = [field.name for field in fields(BottleneckSettings)]


def test_every_setting_is_validated_and_can_be_overridden():
    assert list(_CHECKS) == NAMES
    # Noise around the layer's input is a matter of the published code alone.
    assert list(SettingsOverrides.__annotations__) == [name for name in NAMES if name != "noise_around_input"]


@pytest.mark.parametrize(
    "name, value",
    [
        ("granularity", "pixel"),
        ("beta", -1.0),
        ("beta", float("nan")),
        ("beta", True),
        ("n_steps", 1.5),
        ("n_samples", -1),
        ("complement", "1"),
        ("learning_rate", 0),
        ("momentum", 1.0),
        ("tail_average", 1.5),
        ("antithetic", 1),
        ("alternate", "yes"),
        ("noise_around_input", 0),
    ],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}, expected "):
        resolve_settings("default", **{name: value})


def test_overrides():
    assert resolve_settings("paper", beta=2.0, n_steps=None).beta == 2.0
    assert resolve_settings("paper", beta=2.0, n_steps=None).n_steps == PRESETS["paper"].n_steps
    assert resolve_settings(PRESETS["paper"], n_samples=3).n_samples == 3
    assert PRESETS["paper"].n_samples == 10


def test_settings_do_not_change():
    with pytest.raises(FrozenInstanceError):
        PRESETS["default"].beta = 1.0


@pytest.mark.parametrize("preset", ["papers", None, 3])
def test_an_unknown_preset(preset):
    with pytest.raises(ValueError, match="preset is .*, expected one of default, paper, as_released"):
        resolve_settings(preset)


def test_an_unknown_setting():
    with pytest.raises(TypeError, match="'betta' is not a setting, expected one of granularity, beta"):
        resolve_settings("default", betta=1.0)


def test_masks_of_a_step():
    assert resolve_settings("paper").masks_of_step(3) == [((0,), 1.0)]
    both = resolve_settings("paper", complement=0.5)
    assert (both.masks_of_step(3), both.rows_per_sample, both.alternates) == ([((0, 1), 1.0)], 2, False)
    turns = resolve_settings("paper", complement=0.5, alternate=True)
    assert turns.masks_of_step(0) == [((0,), 2.0), ((1,), 0.0)]
    assert turns.masks_of_step(1) == [((1,), 2.0), ((0,), 0.0)]
    assert (turns.rows_per_sample, turns.alternates, resolve_settings(n_samples=0).samples_per_step) == (1, True, 1)


def test_steps_that_are_averaged():
    numbers = {(16, 0.5): 8, (16, 0.0): 1, (16, 1.0): 16, (1, 0.5): 1, (0, 1.0): 1}
    for (n_steps, tail_average), expected in numbers.items():
        assert resolve_settings(n_steps=n_steps, tail_average=tail_average).averaged_steps == expected


def test_presets_as_dictionaries():
    assert preset_values()["paper"]["beta"] == 1e-5
    assert list(preset_values()["default"]) == NAMES
