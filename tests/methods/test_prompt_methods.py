"""Methods that attribute generated text by removing parts of its prompt."""

import pytest
import torch

from captum_iba.methods.prompt_methods import context_cite, leave_one_part_out


def test_methods_by_removal_find_the_effects_of_a_linear_model():
    effects = torch.tensor([1.0, 3.0, 0.0, -2.0, 0.5])

    def log_probability(kept):
        return kept.float() @ effects - 6

    assert torch.allclose(leave_one_part_out(log_probability, 5), effects.double())
    found = context_cite(log_probability, 5, n_tokens=3, n_contexts=64)
    assert torch.allclose(found, effects.double(), atol=0.15)
    with pytest.raises(ValueError, match="n_contexts is 0"):
        context_cite(log_probability, 5, n_tokens=3, n_contexts=0)
