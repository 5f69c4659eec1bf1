"""The methods by name, and texts scored by any of them."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args, get_type_hints

import numpy as np
import torch

from captum_iba._explain.statistics_files import check_model
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.methods.task import AttributionTask, FloatArray, Scores, no_statistics, random_states_restored
from captum_iba.text.arguments import check_texts, targets_per_text
from captum_iba.text.classifier import Classifier, predicted_classes
from captum_iba.text.encoding import EncodedText, scores_per_word
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.head_targets import ASKED, check_asked, encode_targets, holding_scale
from captum_iba.text.layers import Block, find_layers
from captum_iba.text.statistics import classifier_fingerprint, neutral_pairs, one_per_layer
from captum_iba.text.target import TextTarget

MethodFunction = Callable[..., list[FloatArray]]
"""``function(task, **options)``: for each text of the task one score per token, (T,)."""

StatisticsSource = FeatureStatistics | Sequence[FeatureStatistics] | Callable[[Block], FeatureStatistics | None]

_BY_MAGNITUDE = ":abs"


@dataclass(frozen=True)
class Method:
    """A method that attributes a decision to tokens.

    Attributes:
        name (str): Name of the method.
        function (callable): ``function(task, **options)``, which returns for each text one score per token.
        signed (bool): Whether negative scores have a meaning.
        description (str): One line for users.
        word_level (bool): Whether it scores words, so that each token of a word has the word's score.
        uses_layer (bool): Whether it looks at a layer; otherwise it takes none.
        uses_seed (bool): Whether anything is random in it; otherwise a comparison takes no seed for it.
        options (mapping): Options that ``function`` gets, unless a caller overrides them.
        score_words (callable or None): ``score_words(task, scores, **options)``, which returns the scores of the words
            of each text, (W,), from those of the tokens. None: their sums, or with ``word_level`` their means.
    """

    name: str
    function: MethodFunction
    signed: bool
    description: str
    word_level: bool = False
    uses_layer: bool = True
    uses_seed: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    score_words: Callable[..., list[FloatArray]] | None = None

    def __call__(self, task: AttributionTask, **options: Any) -> list[FloatArray]:
        """Run the method; TypeError as :meth:`check_options`."""
        self.check_options(options)
        return self.function(task, **{**self.options, **options})

    def words(self, task: AttributionTask, scores: Sequence[Any], **options: Any) -> list[FloatArray]:
        """Scores of the words of each text, (W,), from those of the tokens that the method gave."""
        if self.score_words is not None:
            return self.score_words(task, scores, **{**self.options, **options})
        return [
            np.array(scores_per_word(encoded.word_spans, np.asarray(of_text).tolist(), self.word_level))
            for encoded, of_text in zip(task.encoded, scores, strict=True)
        ]

    def option_names(self) -> list[str] | None:
        """Names of the options of the function; None if it takes any, by ``**options``."""
        names = []
        _, *parameters = inspect.signature(self.function).parameters.values()
        for parameter in parameters:
            if parameter.kind is not parameter.VAR_KEYWORD:
                names.append(parameter.name)
                continue
            # Options of a TypedDict, as of iba: **overrides: Unpack[SettingsOverrides].
            options = get_args(parameter.annotation)
            if isinstance(parameter.annotation, str):
                options = get_args(get_type_hints(self.function).get(parameter.name))
            if not (options and hasattr(options[0], "__total__")):
                return None
            names += options[0].__annotations__
        return names

    def check_layer(self, layer: Any) -> None:
        """Raise ValueError if a layer is asked for, and the method does not look at one."""
        if layer is not None and not self.uses_layer:
            raise ValueError(f"layer is {layer!r}, expected None: the method {self.name!r} looks at no layer.")

    def check_options(self, names: Iterable[str]) -> None:
        """Raise TypeError if the function does not take options of these names.

        Raises:
            TypeError: It does not; the message has the first of them, and the options that exist.
        """
        known = self.option_names()
        for name in names:
            if known is not None and name not in known:
                listed = f"its options are {', '.join(known)}" if known else "it has none"
                raise TypeError(f"method: {self.name!r} has no option {name!r}; {listed}.")


METHODS: dict[str, Method] = {}
"""The registry, by name."""


def register_method(
    name: str,
    function: MethodFunction,
    *,
    signed: bool,
    description: str,
    word_level: bool = False,
    uses_layer: bool = True,
    uses_seed: bool = True,
    score_words: Callable[..., list[FloatArray]] | None = None,
    **options: Any,
) -> Method:
    """Register a method under a name.

    Args:
        name (str): Letters, digits and underscores.
        function (callable): ``function(task, **options)``, which gets an :class:`AttributionTask` and returns, for
            each of its texts, one number per token; those of special tokens are not used. It should check its options
            before it uses texts: a comparison calls it with a task without texts first, for which it returns an empty
            list.
        signed (bool): Whether negative scores have a meaning. The scores of such a method can also be taken by
            magnitude, as ``"name:abs"``.
        description (str): One line for users.
        word_level (bool): Whether it scores words, so that each token of a word has the word's score. Default: False.
        uses_layer (bool): Whether it looks at ``task.layer``; otherwise to ask for a layer is an error. Default: True.
        uses_seed (bool): Whether it looks at ``task.seed``; otherwise to give it a seed of its own in a comparison is
            an error. Default: True.
        score_words (callable, optional): ``score_words(task, scores, **options)``, which returns the scores of the
            words of each text from those of its tokens. Default: None, their sums, or with ``word_level`` their means.
        **options: Options that ``function`` gets, unless a caller overrides them.

    Returns:
        Method: The method, as from :func:`find_method`.

    Raises:
        ValueError: The name is taken, or has other characters.

    Examples::

        >>> def token_length(task):
        ...     return [np.array([len(token) for token in text.tokens]) for text in task.encoded]
        >>> method = register_method("token_length", token_length, signed=False, description="Long tokens first.")
        >>> attribute("token_length", classifier, "A wonderful film.")[0].words.round().tolist()
        [1.0, 9.0, 4.0, 1.0]
    """
    if not re.fullmatch(r"\w+", name, re.ASCII):
        raise ValueError(f"name is {name!r}, expected letters, digits and underscores")
    if name in METHODS:
        raise ValueError(f"name is {name!r}, expected one that no method has")
    METHODS[name] = Method(name, function, signed, description, word_level, uses_layer, uses_seed, options, score_words)
    return METHODS[name]


def method_names() -> list[str]:
    """Names of all methods, in the order in which they were registered.

    Examples::

        >>> method_names()[:2]
        ['iba', 'iba_reranked']
    """
    return list(METHODS)


def find_method(name: str) -> Method:
    """A method by its name.

    Args:
        name (str): One of :func:`method_names`; with the suffix ``:abs``, the magnitude of a signed method.

    Returns:
        Method: The method.

    Raises:
        ValueError: There is no such method (the message lists them), or it has no signs.

    Examples::

        >>> find_method("ig:abs").signed
        False
    """
    base, by_magnitude = name.removesuffix(_BY_MAGNITUDE), name.endswith(_BY_MAGNITUDE)
    method = METHODS.get(base)
    if method is None:
        close = difflib.get_close_matches(base.lower(), METHODS, 1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"method: there is no {base!r}{meant}; the methods are {', '.join(METHODS)}.")
    if not by_magnitude:
        return method
    if not method.signed:
        raise ValueError(f"method: {base!r} has no signs that {name!r} could drop.")
    return replace(
        method,
        name=name,
        function=_magnitudes(method.function),
        signed=False,
        description=f"{method.description} By magnitude.",
        score_words=method.score_words and _magnitudes(method.score_words),
    )


def _magnitudes(function: Callable[..., list[FloatArray]]) -> Callable[..., list[FloatArray]]:
    @functools.wraps(function)  # keeps the names of its options
    def by_magnitude(*arguments: Any, **options: Any) -> list[FloatArray]:
        return [np.abs(scores) for scores in function(*arguments, **options)]

    return by_magnitude


def attribute(
    name: str,
    classifier: Classifier | TextExplainer,
    texts: str | Sequence[str],
    pairs: str | Sequence[str] | None = None,
    target: Any = None,
    *,
    word: int | str | Sequence[int | str] | None = None,
    token: int | Sequence[int] | None = None,
    entity: int | str | Sequence[int | str] | None = None,
    choices: Sequence[str] | Sequence[Sequence[str]] | None = None,
    tolerance: float | None = None,
    mask_target: bool = False,
    layer: int | str | Sequence[int | str] | None = None,
    statistics: StatisticsSource | None = None,
    seed: int = 0,
    batch_size: int = 32,
    **options: Any,
) -> list[Scores]:
    """Score the tokens and words of texts by a method.

    The scores of a text do not depend on the other texts. The model and the global random states are left as they were.

    Args:
        name (str): The method: one of :func:`method_names`, with the suffix ``:abs`` for its magnitude.
        classifier (Classifier or TextExplainer): The model and its tokenizer.
        texts (str or sequence of str): One text, or several.
        pairs (str, sequence of str or None): The second text of each. Default: None.
        target (int, str, None, or one per text): The class to explain, by number or label; of other heads as for
            :meth:`captum_iba.text.TextExplainer.explain`. Default: the predicted one.
        word, token, entity, choices, tolerance, mask_target: Of other heads, as for
            :meth:`captum_iba.text.TextExplainer.explain`: what is explained. Its own tokens have no score, unless
            ``mask_target``.
        layer (int, str, sequence of them, or None): Block number from 1, or a module's name, for methods that use a
            layer, others refuse it; only ``iba`` takes several. Default: the method's own.
        statistics (FeatureStatistics, sequence of them, callable or None): Dataset statistics of the layers, for
            ``iba``, or a function that returns those of a :class:`captum_iba.text.Block`. If any has no layer's name,
            one for each layer of ``layer``, in its order (None: of each block). Default: those of a ``TextExplainer``.
        seed (int): Seed of all that is random. Default: 0.
        batch_size (int): Largest number of rows of a forward pass: texts times steps, noise samples or perturbations.
            Default: 32.
        **options: Options of the method.

    Returns:
        list of Scores: One per text, in their order; of ``entity="all"`` one per entity.

    Raises:
        ValueError: No such method, text, class or layer, or an option out of range; the message names it.
        TypeError: A text that is not a string, or an option that the method does not have.

    Examples::

        >>> classifier = Classifier(model, tokenizer)
        >>> scores = attribute("ig", classifier, ["A wonderful film."], target="positive")[0]
        >>> dict(zip(scores.encoded.tokens, scores.tokens))
    """
    find_method(name).check_layer(layer)  # an unknown method is an error before anything runs
    asked: dict[str, Any] = {"word": word, "token": token, "entity": entity, "choices": choices}
    asked |= {"tolerance": tolerance, "mask_target": mask_target}
    known = classifier.classifier if isinstance(classifier, TextExplainer) else classifier
    with holding_scale(known.head):
        task = attribution_task(
            classifier,
            texts,
            pairs,
            target,
            layer=layer,
            statistics=statistics,
            seed=seed,
            batch_size=batch_size,
            **asked,
        )
        return score(name, task, **options)


def attribution_task(
    classifier: Classifier | TextExplainer,
    texts: str | Sequence[str],
    pairs: str | Sequence[str] | None = None,
    target: Any = None,
    *,
    layer: int | str | Sequence[int | str] | None = None,
    statistics: StatisticsSource | None = None,
    seed: int = 0,
    batch_size: int = 32,
    **asked: Any,
) -> AttributionTask:
    """Encoded texts, and what is explained of each, for :func:`score`.

    Args:
        classifier, texts, pairs, target, layer, statistics, seed, batch_size: As for :func:`attribute`.
        **asked: ``word``, ``token``, ``entity``, ``choices``, ``tolerance`` and ``mask_target``, as for it.

    Returns:
        AttributionTask: The task; of ``entity="all"`` with every entity of every text.

    Raises:
        TypeError, ValueError: As :func:`attribute`.

    Examples::

        >>> task = attribution_task(classifier, ["A wonderful film."], target="positive")
        >>> task.targets
        [1]
    """
    if unknown_names := set(asked) - set(ASKED):
        raise TypeError(f"{sorted(unknown_names)[0]!r} is no argument, expected one of {', '.join(ASKED)}")
    if isinstance(classifier, TextExplainer):
        statistics = _own_statistics(classifier) if statistics is None else statistics
        classifier = classifier.classifier
    asked = dict.fromkeys(ASKED) | {"mask_target": False} | asked
    check_asked(classifier.head, asked)
    first, second = check_texts(texts, pairs, classifier.labels)
    about = None
    if classifier.head.has_classes:
        encoded = classifier.encode(first, second)
        given = targets_per_text(target, len(first), classifier.labels)
        unknown = [text for text, target in zip(encoded, given, strict=True) if target is None]
        predicted = iter(predicted_classes(classifier, unknown, batch_size))
        targets = [next(predicted) if target is None else target for target in given]
    else:
        found = encode_targets(classifier, first, second, target, batch_size, asked, isinstance(texts, str))
        encoded, targets = [item.encoded for item in found], [item.column for item in found]
        about = [item.about for item in found]
    statistics_of = _statistics_function(statistics, classifier, layer)
    return AttributionTask(classifier, encoded, targets, seed, batch_size, layer, statistics_of, explained=about)


def score(name: str, task: AttributionTask, **options: Any) -> list[Scores]:
    """Score the tokens and words of encoded texts by a method.

    Args:
        name (str): As for :func:`attribute`.
        task (AttributionTask): The texts and their targets; without texts, only the options are checked.
        **options: Options of the method.

    Returns:
        list of Scores: One per text, in their order.

    Raises:
        ValueError: No such method, a layer for one that looks at none, an option out of range, or a method that does
            not return one finite number per token, or negative ones though it is registered without signs.
        TypeError: An option that the method does not have.

    Examples::

        >>> task = AttributionTask(classifier, classifier.encode(["A wonderful film."], [None]), [1])
        >>> score("leave_one_out", task)[0].words
    """
    method = find_method(name)
    method.check_layer(task.layer)
    classifier = task.classifier
    start = time.perf_counter()
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        ModuleGuard(classifier.model),
        random_states_restored(),
        classifier.with_padding_token(),
    ):
        found = method(task, **options)
        seconds = (time.perf_counter() - start) / max(len(task.encoded), 1)
        if len(found) != len(task.encoded):
            raise ValueError(f"method: {name!r} gave scores of {len(found)} texts, expected {len(task.encoded)}.")
        tokens = [_checked_scores(name, *of_text) for of_text in zip(task.encoded, found, strict=True)]
        if not method.signed and any((of_text < 0).any() for of_text in tokens):
            raise ValueError(f"method: {name!r} gave negative scores, but is registered with signed=False.")
        words = method.words(task, tokens, **options)
    explained: Sequence[TextTarget | None] = task.explained or [None] * len(task.encoded)
    return [
        Scores(name, target, encoded, of_tokens, of_words, method.signed, seconds, about)
        for target, encoded, of_tokens, of_words, about in zip(
            task.targets, task.encoded, tokens, words, explained, strict=True
        )
    ]


def _checked_scores(name: str, encoded: EncodedText, values: Any) -> FloatArray:
    """Scores of the tokens, (T,), 0 for special tokens and what is explained."""
    tokens = np.array(values, dtype=np.float64)
    if tokens.shape != (len(encoded),):
        raise ValueError(
            f"method: {name!r} gave scores of shape {tokens.shape}, expected ({len(encoded)},), one per token."
        )
    tokens[[not removable for removable in encoded.removable]] = 0.0
    if not np.isfinite(tokens).all():
        raise ValueError(f"method: {name!r} gave NaN or infinite scores for the text {encoded.text[:60]!r}.")
    return tokens


def _own_statistics(explainer: TextExplainer) -> StatisticsSource | None:
    """The statistics of an explainer's layers, but neutral ones, of which texts and pairs have different ones."""
    if explainer.statistics is None or neutral_pairs(explainer.statistics) is not None:
        return None
    _check_model(explainer.statistics, explainer.classifier)
    of_layers = {layer.key: found for layer, found in zip(explainer.layers, explainer.statistics, strict=True)}
    return lambda block: of_layers.get(block.key)


def _check_model(statistics: Sequence[FeatureStatistics], classifier: Classifier) -> None:
    if any(layer_statistics.model is not None for layer_statistics in statistics):
        check_model(statistics, classifier_fingerprint(classifier), classifier.name)


def _statistics_function(
    statistics: StatisticsSource | None, classifier: Classifier, layer: int | str | Sequence[int | str] | None
) -> Callable[[Block], FeatureStatistics | None]:
    if statistics is None:
        return no_statistics
    if callable(statistics):
        return statistics
    per_layer = [statistics] if isinstance(statistics, FeatureStatistics) else list(statistics)
    _check_model(per_layer, classifier)

    def statistics_of(block: Block) -> FeatureStatistics:
        names = [layer_statistics.layer for layer_statistics in per_layer]
        if None in names:  # the position alone says of which layer they are
            blocks = find_layers(classifier.model, layer)
            one_per_layer(per_layer, blocks)
            names = [known_block.key for known_block in blocks]
        if names.count(block.key) == 1:
            return per_layer[names.index(block.key)]
        raise ValueError(f"statistics are of layers {names}, expected those of layer {block.key!r}, once")

    return statistics_of
