"""Methods that attribute generated text to parts of its prompt by removing them.

Every method takes a function of the kept parts, (N, P) booleans, that returns log-probabilities of the response, (N,),
and the number of parts, and returns one score per part, (P,).
"""

from __future__ import annotations

import torch
from torch import Tensor

from captum_iba._checks import check_integer, check_number
from captum_iba.metrics.prompt_removal import LogProbability, random_removals


def leave_one_part_out(log_probability: LogProbability, n_parts: int) -> Tensor:
    """Decrease in the log-probability of the response without each part, in one forward pass per part and one more.

    Args:
        log_probability (Callable): Function of the kept parts.
        n_parts (int): Number of parts.

    Returns:
        Tensor: One score per part, (P,), float64.

    Examples::

        >>> effects = torch.tensor([1.0, 3.0])
        >>> leave_one_part_out(lambda kept: kept.float() @ effects, 2)
        tensor([1., 3.], dtype=torch.float64)
    """
    check_integer("n_parts", n_parts, at_least=1)
    kept = torch.cat([torch.ones(1, n_parts, dtype=torch.bool), ~torch.eye(n_parts, dtype=torch.bool)])
    values = log_probability(kept).cpu().double()
    return values[0] - values[1:]


def context_cite(
    log_probability: LogProbability,
    n_parts: int,
    n_tokens: int,
    n_contexts: int = 64,
    lasso_alpha: float = 0.01,
    seed: int = 0,
) -> Tensor:
    """Weights of a sparse linear model fitted to random removals (Cohen-Wang et al. 2024, ContextCite).

    As in its published code, half of the parts are kept at random, the target of the regression is the logit of the
    probability of the whole response per token, and the columns are standardized before the Lasso.

    Args:
        log_probability (Callable): Function of the kept parts; log-probabilities are means per token.
        n_parts (int): Number of parts.
        n_tokens (int): Number of tokens of the response.
        n_contexts (int): Number of random removals, a forward pass each. Default: 64.
        lasso_alpha (float): Weight of the penalty. Default: 0.01.
        seed (int): Seed of the removals. Default: 0.

    Returns:
        Tensor: One score per part, (P,), float64.

    Raises:
        ValueError: A number out of range.

    Examples::

        >>> effects = torch.tensor([1.0, 3.0])
        >>> weights = context_cite(lambda kept: kept.float() @ effects - 5.0, 2, n_tokens=1)
        >>> bool(weights[1] > weights[0])
        True
    """
    from sklearn.linear_model import Lasso
    from sklearn.preprocessing import StandardScaler

    for name, number in (("n_parts", n_parts), ("n_contexts", n_contexts), ("n_tokens", n_tokens)):
        check_integer(name, number, at_least=1)
    check_number("lasso_alpha", lasso_alpha)
    kept = random_removals(n_parts, n_contexts, 0.5, seed)
    whole = (log_probability(kept).cpu().double() * n_tokens).clamp_max(-1e-12)
    logits = whole - torch.log(-torch.expm1(whole))
    scaler = StandardScaler()
    columns = scaler.fit_transform(kept.double().numpy())
    lasso = Lasso(alpha=lasso_alpha).fit(columns, (logits / n_tokens).numpy())
    return torch.from_numpy(lasso.coef_ / scaler.scale_)
