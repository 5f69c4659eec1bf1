"""Attention-aware layer-wise relevance propagation (AttnLRP), by gradients with rules for each operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from captum.attr import InputXGradient
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from captum_iba.attr._model.guard import ModuleGuard, on_this_thread
from captum_iba.methods.gradient_methods import EmbeddedTexts, scores_at_embeddings
from captum_iba.methods.task import AttributionTask, FloatArray
from captum_iba.text.model_properties import attention_implementation


def attn_lrp(task: AttributionTask) -> list[FloatArray]:
    """Relevance of each word embedding for the target's logit, propagated back through every operation (AttnLRP).

    Computed as embedding times gradient, which is relevance propagation with these rules:

    - linear layers, sums: in proportion to the contributions (LRP-0); a bias keeps its part;
    - products of two activations (attention weights and values, queries and keys, gates): half to each (uniform rule);
    - softmax: the first-order Taylor expansion, whose constant term keeps its part;
    - layer and RMS normalization: the standard deviation is a constant;
    - elementwise activations: the relevance of the output (identity rule).

    So the scores, with the relevance of positions, token types, special tokens, biases and constant terms, sum to the
    logit. Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers", ICML 2024,
    https://arxiv.org/abs/2402.05602; there linear layers have a small stabilizer (LRP-epsilon).

    Returns:
        list of array: Scores, (T,), one array per text.

    Raises:
        ValueError: The model computes the logits by an operation without a rule; the message names it. BERT, RoBERTa,
            DistilBERT, ELECTRA, GPT-2 and Llama have none.
    """
    model = task.classifier.model

    def attribute(texts: EmbeddedTexts) -> Any:
        def forward(embeddings: Tensor, *inputs: Tensor) -> Tensor:
            with attention_implementation(model, "eager"), relevance_rules(model) as check:
                output = texts.forward(embeddings, *inputs)
            check(output)
            return output

        with ModuleGuard(model):  # products with parameters that take gradients would be products of activations
            return InputXGradient(forward).attribute(texts.leaves(), **texts.arguments).sum(-1)

    return scores_at_embeddings(task, 1, attribute)


# Functions of torch, by name, that are elementwise, and 0 at 0.
_ELEMENTWISE = ("gelu", "relu", "silu", "tanh", "elu", "selu", "leaky_relu", "mish")
_PRODUCTS = ("mul", "__mul__", "__rmul__", "multiply", "matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "einsum")

# Ends of the names of modules that compute such functions, or a normalization without mean and bias, in several steps.
_SCALING_MODULES = (
    "NewGELUActivation",
    "FastGELUActivation",
    "QuickGELUActivation",
    "AccurateGELUActivation",
    "GELUTanh",
    "ReLUSquaredActivation",
    "RMSNorm",
    "T5LayerNorm",
)

# Operations in the graph of gradients, without the number at their end, through which gradients are relevance.
_LINEAR = frozenset(
    f"{name}Backward"
    for name in (
        *(
            "Add",
            "Sub",
            "Rsub",
            "Neg",
            "Sum",
            "Mean",
            "Where",
            "MaskedFill",
            "Gather",
            "Index",
            "IndexSelect",
            "Select",
        ),
        *("View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "MoveDim", "Expand", "Repeat", "Unfold"),
        *("Slice", "Split", "SplitWithSizes", "UnsafeSplit", "Chunk", "Unbind", "Cat", "Stack", "Squeeze", "Unsqueeze"),
        *("Clone", "ToCopy", "Alias", "AsStrided", "ConstantPadNd", "Flip", "Roll", "Softmax"),
    )
) | {"AccumulateGrad", "torch::autograd::AccumulateGrad", "_HalvedGradientBackward", "_IdentityRuleBackward"}
# Operations that are linear in one input at a time: the positions of those of which only one may have a gradient.
_MULTILINEAR = {
    **{f"{name}Backward": (0, 1) for name in ("Mul", "Mm", "Bmm", "Mv", "Dot")},
    **{f"{name}Backward": (1, 2) for name in ("Addmm", "Baddbmm", "Addbmm", "Addmv")},
}
# Operations that are linear in their first input alone.
_LINEAR_IN_FIRST = frozenset({"DivBackward", "ConvolutionBackward", "LinearBackward"})


class _HalvedGradient(torch.autograd.Function):
    """The uniform rule: half of the gradient to both factors of a product."""

    @staticmethod
    def forward(ctx: Any, product: Tensor) -> Tensor:
        return product.clone()  # no view: a model may write into it

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / 2


class _IdentityRule(torch.autograd.Function):
    """The identity rule: an output y of x, elementwise, is x times the constant y / x. Where x is 0, so is that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, output: Tensor) -> Tensor:
        ctx.save_for_backward(torch.where(x == 0, 0.0, output / x).to(x.dtype))
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (ratio,) = ctx.saved_tensors
        return gradient.to(ratio.dtype) * ratio, None


class _RelevanceMode(TorchFunctionMode):
    """Applies the rules to functions of torch as they are called; keeps the products that they were applied to."""

    def __init__(self) -> None:
        super().__init__()
        self.products: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is F.layer_norm:
            return _layer_norm(*args, **kwargs)
        if name in _ELEMENTWISE and not (kwargs.get("inplace") or True in args[1:]):
            output = func(*args, **kwargs)
            return _with_identity_rule(args[0] if args else kwargs.get("input"), output)
        if name in _PRODUCTS:
            product = func(*args, **kwargs)
            # Of one operand (torch.einsum), the node is that of an earlier product.
            if (node := _bilinear_node(product)) is None or node in self.products:
                return product
            self.products.add(node)
            return _HalvedGradient.apply(product)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer normalization whose standard deviation is a constant."""
    dims = tuple(range(-len(normalized_shape), 0))
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    centered = wide - wide.mean(dims, keepdim=True)
    variance = centered.detach().square().mean(dims, keepdim=True)
    normalized = (centered * (variance + eps).rsqrt()).to(input.dtype)
    normalized = normalized if weight is None else normalized * weight
    return normalized if bias is None else normalized + bias


def _with_identity_rule(x: Any, output: Any) -> Any:
    if not isinstance(x, Tensor) or not isinstance(output, Tensor) or x.shape != output.shape or not x.requires_grad:
        return output
    return _IdentityRule.apply(x, output.detach())  # type: ignore[no-untyped-call]


def _bilinear_node(product: Any) -> Any:
    """The operation of two factors with gradients that a product comes from, past changes of shape; None without."""
    node = getattr(product, "grad_fn", None)
    while node is not None and _operation(node) not in _MULTILINEAR:
        following = [inner for inner, _ in node.next_functions if inner is not None]
        node = following[0] if len(following) == 1 else None
    return node if node is not None and _has_two_factors(node) else None


def _operation(node: Any) -> str:
    return str(node.name()).rstrip("0123456789")


def _has_two_factors(node: Any) -> bool:
    factors = _MULTILINEAR[_operation(node)]
    return all(i < len(node.next_functions) and node.next_functions[i][0] is not None for i in factors)


@contextmanager
def relevance_rules(model: nn.Module) -> Iterator[Callable[[Tensor], None]]:
    """Context in which the gradients of what a model computes are those of AttnLRP, at every operation.

    Parameters must not require gradients.

    Args:
        model (nn.Module): The model.

    Yields:
        callable: Takes the model's output, and raises ValueError if it comes from an operation without a rule.
    """
    mode = _RelevanceMode()

    def apply_rule(module: nn.Module, args: Any, output: Any) -> Any:
        has_rule = type(module).__name__.endswith(_SCALING_MODULES) and len(args) == 1
        return _with_identity_rule(args[0], output) if has_rule else None

    def check(output: Tensor) -> None:
        seen, queue = set(), [output.grad_fn]
        while queue:
            node = queue.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if not _has_rule(node, mode.products):
                raise ValueError(
                    f"model: {type(model).__name__} computes {_operation(node).removesuffix('Backward')}, an operation "
                    "that attn_lrp has no rule for; expected linear layers, attention by matrix products and softmax, "
                    "layer or RMS normalization, and GELU, ReLU, SiLU or tanh, as in BERT, RoBERTa, DistilBERT, "
                    "ELECTRA, GPT-2 and Llama"
                )
            queue += [following for following, _ in node.next_functions]

    with ExitStack() as stack:
        # Of all modules: BigBird makes an activation in every pass.
        stack.callback(register_module_forward_hook(on_this_thread(apply_rule)).remove)
        stack.enter_context(mode)
        yield check


def _has_rule(node: Any, products: set[Any]) -> bool:
    operation = _operation(node)
    if operation in _MULTILINEAR:
        return not _has_two_factors(node) or node in products
    if operation in _LINEAR_IN_FIRST:
        return all(following is None for following, _ in node.next_functions[1:2])
    return operation in _LINEAR
