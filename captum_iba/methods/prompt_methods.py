"""Methods that attribute generated text to parts of its prompt.

:data:`PROMPT_METHODS` has them by name, for :func:`captum_iba.compare.compare_prompts`. Those that remove parts take a
function of the kept parts, (N, P) booleans, that returns log-probabilities of the response, (N,), and the number of
parts, and return one score per part, (P,).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from captum.attr import IntegratedGradients, KernelShap, ShapleyValueSampling
from torch import Tensor

from captum_iba._checks import check_integer, check_number
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.methods.attention import rolled_out
from captum_iba.metrics.part_removal import LogProbability
from captum_iba.metrics.prompt_removal import random_removals
from captum_iba.text.generation_explainer import GenerationExplainer
from captum_iba.text.model_properties import attention_implementation
from captum_iba.text.prompt import Prompt
from captum_iba.text.prompt_model import closable
from captum_iba.text.prompt_part_removal import PromptRemoval


@dataclass(frozen=True)
class PromptTask:
    """A response, and the parts of its prompt that a method scores.

    Attributes:
        explainer (GenerationExplainer): The model and its tokenizer.
        inp (str or list of messages): The prompt as it was given.
        granularity (str or list of tuple): Its parts, as ``GenerationExplainer.explain`` takes them.
        prompt (Prompt): Its tokens and parts.
        response (list of int): Token ids of the response.
        gen_args (dict or None): Arguments by which the decoder of an encoder-decoder begins.
        batch_size (int): Largest number of rows of a forward pass.
        seed (int): Seed of random numbers.
    """

    explainer: GenerationExplainer
    inp: str | Sequence[Mapping[str, str]]
    granularity: str | Sequence[tuple[int, int]]
    prompt: Prompt
    response: list[int]
    gen_args: dict[str, Any] | None = None
    batch_size: int = 8
    seed: int = 0

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return len(self.prompt.names)

    @property
    def removal(self) -> PromptRemoval:
        """The mean log-probability per token of the response as a function of the kept parts."""
        return PromptRemoval(self.explainer.model, self.prompt, self.response, None, None, self.batch_size)

    def sum_per_part(self, per_token: Tensor) -> Tensor:
        """Sums over the tokens of each part, (P,), of one number per token of the prompt."""
        parts = torch.tensor(self.prompt.parts)
        values = per_token.detach().cpu().double()[: len(parts)]
        return torch.zeros(self.n_parts, dtype=torch.float64).index_add_(0, parts[parts >= 0], values[parts >= 0])


PromptMethod = Callable[[PromptTask], Tensor | tuple[Tensor, Tensor]]
"""Scores of a task's parts, (P,), or the scores that rank them and those that add up, as bits do."""


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


def information_bottleneck_of_prompt(task: PromptTask, **settings: Any) -> tuple[Tensor, Tensor]:
    """The bottleneck's ranking of the parts, as :meth:`captum_iba.text.GenerationExplainer.explain` gives it, and what
    is summed over parts: their effects, or their bits where none was measured."""
    result = task.explainer.explain(
        task.inp,
        task.response,
        granularity=task.granularity,
        gen_args=task.gen_args,
        batch_size=task.batch_size,
        **settings,
    )
    effects = result.estimated_effects
    return torch.from_numpy(result.scores), torch.from_numpy(effects if np.isfinite(effects).all() else result.bits)


def random_parts(task: PromptTask) -> Tensor:
    """Random scores, the baseline of all methods; others for each prompt."""
    generator = torch.Generator().manual_seed(task.seed + sum(task.prompt.ids))
    return torch.rand(task.n_parts, generator=generator)


def shapley_value_sampling(task: PromptTask, n_samples: int = 5) -> Tensor:
    """Shapley values by ``captum.attr.ShapleyValueSampling``: ``n_samples`` orders of the parts, P passes each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.seed)
        method = ShapleyValueSampling(_log_probability_of_features(task))
        features = torch.ones(1, task.n_parts)
        scores: Tensor = method.attribute(features, n_samples=n_samples, perturbations_per_eval=task.batch_size)
    return scores[0]


def kernel_shap_of_prompt(task: PromptTask, n_samples: int = 64) -> Tensor:
    """Shapley values by ``captum.attr.KernelShap``: a linear model of ``n_samples`` removals."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.seed)
        method = KernelShap(_log_probability_of_features(task))
        features = torch.ones(1, task.n_parts)
        scores: Tensor = method.attribute(features, n_samples=n_samples, perturbations_per_eval=task.batch_size)
    return scores[0]


def integrated_gradients_of_prompt(task: PromptTask, n_steps: int = 50) -> Tensor:
    """Integrated gradients of the mean log-probability per token, by Captum, at the embeddings, from zeros."""
    with ModuleGuard(task.explainer.model):
        model = closable(task.explainer.model, task.prompt, task.response)
        whole, tokens = model.embedded.detach(), model.maskable.unsqueeze(2)

        def log_probability(embedded: Tensor) -> Tensor:
            model.embedded = embedded
            return model.log_probabilities(len(embedded)).mean(1)

        scores: Tensor = IntegratedGradients(log_probability, multiply_by_inputs=True).attribute(
            whole, baselines=torch.where(tokens, 0.0, whole), n_steps=n_steps, internal_batch_size=task.batch_size
        )
    return task.sum_per_part(scores[0].float().sum(1))


def gradient_x_activation_of_prompt(task: PromptTask) -> Tensor:
    """Gradient of the mean log-probability per token times the embeddings."""
    with ModuleGuard(task.explainer.model), torch.enable_grad():
        model = closable(task.explainer.model, task.prompt, task.response)
        model.embedded = model.embedded.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model.log_probabilities(1).mean(), model.embedded)
    return task.sum_per_part((gradient * model.embedded)[0].float().sum(1))


def attention_rollout_of_prompt(task: PromptTask) -> Tensor:
    """Attention weights multiplied through all blocks of a decoder, from the positions that give the response."""
    decoder = task.explainer.model
    if task.prompt.decoder_ids:
        raise ValueError(f"model: {type(decoder).__name__} is an encoder-decoder, attention_rollout expects a decoder")
    ids = torch.tensor([[*task.prompt.ids, *task.response]], device=decoder.get_input_embeddings().weight.device)
    with ModuleGuard(decoder), attention_implementation(decoder, "eager", output_attentions=True), torch.no_grad():
        attentions = decoder(input_ids=ids, use_cache=False).attentions
    if not attentions or any(weights is None or weights.shape[-1] != ids.shape[1] for weights in attentions):
        raise ValueError(f"model: {type(decoder).__name__} does not give the attention weights of every block")
    row = torch.zeros(ids.shape, device=ids.device)
    row[0, len(task.prompt.ids) - 1 : -1] = 1 / len(task.response)
    return task.sum_per_part(rolled_out(row, attentions)[0])


def _log_probability_of_features(task: PromptTask) -> Callable[[Tensor], Tensor]:
    """The log-probability as a function of features that are 1 for a part that is kept, and 0 for a removed one."""
    removal = task.removal
    return lambda features: removal(features > 0.5)


def _by_removal(task: PromptTask) -> Tensor:
    return leave_one_part_out(task.removal, task.n_parts)


def _context_cite(task: PromptTask, n_contexts: int) -> Tensor:
    return context_cite(task.removal, task.n_parts, len(task.response), n_contexts, seed=task.seed)


PROMPT_METHODS: dict[str, PromptMethod] = {
    "iba": information_bottleneck_of_prompt,
    "iba_bits": partial(information_bottleneck_of_prompt, rerank=0),
    "random": random_parts,
    "leave_one_out": _by_removal,
    "context_cite_32": partial(_context_cite, n_contexts=32),
    "context_cite_48": partial(_context_cite, n_contexts=48),
    "context_cite_64": partial(_context_cite, n_contexts=64),
    "context_cite_256": partial(_context_cite, n_contexts=256),
    "shapley_value_sampling": shapley_value_sampling,
    "kernel_shap": kernel_shap_of_prompt,
    "integrated_gradients": integrated_gradients_of_prompt,
    "gradient_x_activation": gradient_x_activation_of_prompt,
    "attention_rollout": attention_rollout_of_prompt,
}
"""The methods by name. ``leave_one_out`` gives what Captum's ``FeatureAblation`` with an empty baseline gives."""
