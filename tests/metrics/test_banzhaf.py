"""Banzhaf values against their definition, least squares of another library, and closed forms."""

import itertools

import numpy as np
import pytest
import torch

from captum_iba.metrics import banzhaf_values


def nonlinear(kept):
    kept = kept.double()
    return 0.6 * kept[:, 0] * kept[:, 1] + 0.3 * torch.maximum(kept[:, 2], kept[:, 3]) - 0.1 * kept[:, 4] + 0.2


def exact(value, n_parts):
    """The mean of what each part adds, over all sets of the others."""
    found = []
    for part in range(n_parts):
        rows = torch.tensor(list(itertools.product([False, True], repeat=n_parts)))
        with_it, without = rows.clone(), rows.clone()
        with_it[:, part], without[:, part] = True, False
        found.append((value(with_it) - value(without)).mean())
    return torch.stack(found)


def test_the_values_are_those_of_the_definition():
    assert exact(nonlinear, 6).tolist() == pytest.approx([0.3, 0.3, 0.15, 0.15, -0.1, 0.0])
    found = banzhaf_values(nonlinear, 6, n_rows=20_000, prior_rows=0)
    torch.testing.assert_close(found, exact(nonlinear, 6), atol=0.01, rtol=0)
    assert (banzhaf_values(nonlinear, 6, n_rows=64) - exact(nonlinear, 6)).abs().max() < 0.15


def test_a_linear_function_has_its_coefficients():
    weights = torch.tensor([0.5, -0.25, 0.0, 0.125, 1.0], dtype=torch.float64)
    for seed in range(3):
        found = banzhaf_values(lambda kept: kept.double() @ weights + 3, 5, n_rows=16, prior_rows=0, seed=seed)
        torch.testing.assert_close(found, weights)
        # A prior that is right stays.
        torch.testing.assert_close(banzhaf_values(lambda kept: kept.double() @ weights, 5, weights, seed=seed), weights)


def test_ridge_regression_is_that_of_scikit_learn():
    from sklearn.linear_model import Ridge

    rows, prior = [], np.array([0.2, 0.1, 0.0, 0.0, 0.0, 0.3])
    found = banzhaf_values(lambda kept: rows.append(kept) or nonlinear(kept), 6, prior, n_rows=32, prior_rows=12)
    kept = rows[0].double().numpy()
    residuals = nonlinear(rows[0]).numpy() - kept @ prior  # towards the prior: shrinkage of what it leaves
    assert found.numpy() == pytest.approx(prior + Ridge(alpha=12 / 4).fit(kept, residuals).coef_, abs=1e-9)


def test_half_of_the_rows_are_complements_and_the_seed_decides():
    seen = []
    first, again, other = (
        banzhaf_values(lambda kept: seen.append(kept) or nonlinear(kept), 6, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(seen[0][::2], ~seen[0][1::2]) and seen[0].shape == (64, 6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n_parts": 0}, "n_parts is 0"),
        ({"n_rows": 7}, "n_rows is 7, expected an even number"),
        ({"n_rows": 0}, "n_rows is 0"),
        ({"prior": [0.1, 0.2]}, r"prior has the shape \(2,\), expected \(6,\), one number per part"),
        ({"prior_rows": -1.0}, "prior_rows is -1"),
    ],
)
def test_bad_arguments_are_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        banzhaf_values(nonlinear, **{"n_parts": 6, **arguments})
