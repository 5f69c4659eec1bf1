"""A classifier with bottlenecks at its layers, for encoded texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from captum_iba._compat import progress
from captum_iba._explain.fingerprint import statistics_fingerprint
from captum_iba._explain.json_result import provenance
from captum_iba._explain.model import model_name
from captum_iba._reading.check_sentences import CONFIRMING
from captum_iba._reading.decision import labels_beside
from captum_iba._reading.mask_state import lost_prediction
from captum_iba._reading.wording import format_probability
from captum_iba._warnings import LostPredictionWarning, warn_user
from captum_iba.attr.execution import BottleneckTrace, tensor_with_bits
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.information_bottleneck import InformationBottleneckAttribution
from captum_iba.attr.losses import has_probability
from captum_iba.attr.optimizer import unneeded_bits
from captum_iba.attr.settings import BottleneckSettings
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText, per_token
from captum_iba.text.layers import Block, token_activations_required
from captum_iba.text.result import TextAttribution
from captum_iba.text.statistics import GroupedStatistics
from captum_iba.text.target import TextTarget
from captum_iba.text.tokens import TextTrace, Token

NEUTRAL_STATISTICS = (
    "no statistics given: those of neutral texts in the package are used, which are English sentences; for texts "
    "unlike these, call estimate_statistics with some like those to be explained"
)

_QUOTED = 40  # characters


def warn_of_lost_predictions(results: Sequence[TextAttribution]) -> None:
    """Warn of texts whose masks have lost the prediction, unless a check confirms the leading words."""
    lost = [result for result in results if lost_prediction(result) and result.verdict not in CONFIRMING]
    if not lost:
        return
    first, more = lost[0], f", and {len(lost) - 1} more" if len(lost) > 1 else ""
    text = first.text if len(first.text) <= _QUOTED else f"{first.text[:_QUOTED]}…"
    masked, whole = map(format_probability, (first.masked_probability or 0.0, first.target_probability))
    beta = first.settings.get("beta")
    lower = "Lower beta, or estimate" if beta is None or beta > 1 else "Estimate"  # the default has tried 1
    warn_user(
        f"the mask removed too much of a text, {text!r}{more}. With the information that is left {first.measured} is "
        f"{masked}, with the whole text {whole} (result.masked_probability). The bits may be too few. {lower} "
        "statistics from texts like yours",
        LostPredictionWarning,
    )


class _TextOutput(NamedTuple):
    """What the attribution of a batch gives for one of its texts, row ``row`` of ``trace``."""

    probabilities: list[float]
    target: int
    predicted: int
    bits_per_token: list[float]
    n_features: int
    trace: BottleneckTrace | None
    row: int


class ClassifierBottleneck:
    """A classifier with bottlenecks at some layers, which share one mask, for encoded texts.

    :class:`TextExplainer` and method ``iba`` use it. One object for all calls warns, and tries to replay layers, once.
    """

    def __init__(
        self, classifier: Classifier, layers: Sequence[Block], statistics: Sequence[FeatureStatistics] | None
    ) -> None:
        self.classifier = classifier
        self.layers = tuple(layers)
        self.statistics = statistics
        self.source = "a dataset"
        self._attribution = InformationBottleneckAttribution(
            classifier.class_scores, [block.module for block in layers], statistics=statistics
        )

    def explain(
        self,
        encoded: Sequence[EncodedText],
        targets: Sequence[int | None],
        settings: BottleneckSettings,
        *,
        preset: str,
        granularity: str,
        seed: int = 0,
        batch_size: int = 8,
        internal_batch_size: int | None = None,
        return_trace: bool | Literal["final"] = False,
        show_progress: bool = False,
        on_text: Callable[[int], None] = lambda number: None,
        fingerprint: str | None = None,
        explained: Sequence[TextTarget] | None = None,
    ) -> list[TextAttribution]:
        """Attribute the decisions on encoded texts to their tokens, as :meth:`TextExplainer.explain`.

        ``preset`` is the name of the settings in the result; ``granularity`` is theirs, or ``"word"``; ``on_text`` gets
        the number of each text that is explained; ``fingerprint`` is the model's, for the results. ``explained`` has
        the target of each text, for heads other than a sequence classifier's.
        """
        if settings.noise_around_input and len(self.layers) > 1:
            raise ValueError(f"layer names {len(self.layers)} layers, expected one for the preset as_released")
        batches = self.classifier.batches([len(text) for text in encoded], batch_size)
        shown, has_bar = {**asdict(settings), "seed": int(seed)}, show_progress and len(batches) > 1
        about_all: dict[str, Any] = {
            "layer": self._layer_name(),
            "layer_index": self.layers[0].index if len(self.layers) == 1 else None,
            "method": "iba",
            "preset": preset,
            "granularity": granularity,
            "statistics": self._noise_origin(settings),
            "settings": {name: shown[name] for name in shown if name not in ("noise_around_input", "granularity")},
            "model": model_name(self.classifier.model),
            "provenance": self._provenance(settings, fingerprint),
        }
        results: dict[int, TextAttribution] = {}
        for batch in progress(batches, desc="Texts") if has_bar else batches:
            outputs = self._attribute(
                [encoded[i] for i in batch],
                [targets[i] for i in batch],
                settings,
                by_word=granularity == "word",
                seed=seed,
                internal_batch_size=internal_batch_size,
                return_trace=return_trace,
                show_progress=show_progress and len(batches) == 1,
            )
            for i, output in zip(batch, outputs, strict=True):
                results[i] = TextAttribution(
                    text=encoded[i].text,
                    pair=encoded[i].pair,
                    tokens=tokens_with_bits(encoded[i], output.bits_per_token, self.classifier.tokenizer.unk_token),
                    tokens_truncated=encoded[i].tokens_truncated,
                    **self._decision(output, None if explained is None else explained[i]),
                    **_of_mask(output, encoded[i], settings, granularity, has_steps=return_trace is True),
                    **about_all,
                )
                on_text(i)
        return [results[i] for i in range(len(encoded))]

    def _attribute(
        self,
        texts: Sequence[EncodedText],
        targets: Sequence[int | None],
        settings: BottleneckSettings,
        *,
        by_word: bool,
        return_trace: bool | Literal["final"],
        **options: Any,
    ) -> list[_TextOutput]:
        """One batch of texts; ``options`` are those of :class:`InformationBottleneckAttribution`."""
        classifier = self.classifier
        # Gradients cannot flow through tensors that are made in inference mode.
        with classifier.with_padding_token(), torch.inference_mode(False):
            inputs = classifier.tensors(texts, whole_windows=True)
            input_ids, *others = inputs.values()
            length, device = input_ids.shape[1], input_ids.device
            with token_activations_required(self.layers, input_ids.shape):
                probabilities = classifier.probabilities(inputs)
            predicted = probabilities.argmax(-1).tolist()
            classes = [best if target is None else target for target, best in zip(targets, predicted, strict=True)]
            attribution = self._attribution.attribute(
                input_ids,
                torch.tensor(classes, device=device),
                tuple(others) or None,
                feature_mask=per_token([text.word_groups for text in texts], -1, device, length) if by_word else None,
                bottleneck_mask=per_token([_maskable(text, settings) for text in texts], False, device, length),
                feature_dim=-1,
                layer_call=[block.call for block in self.layers],
                share_mask=True,
                loss=classifier.head.loss,
                return_trace=return_trace,
                preset=settings,
                **options,
            )
        bits, trace = attribution if return_trace else (attribution, None)
        if trace is not None and not has_probability(classifier.head.loss):
            closed = trace.closed_probability.exp()
            trace = trace._replace(probability=trace.probability.exp(), closed_probability=closed)
        bits = tensor_with_bits(bits)
        bits_per_token = bits.cpu().double().sum(-1).tolist()
        return [
            _TextOutput(
                probabilities[row].tolist(),
                classes[row],
                predicted[row],
                bits_per_token[row],
                bits.shape[-1],
                trace,
                row,
            )
            for row in range(len(texts))
        ]

    def _decision(self, output: _TextOutput, about: TextTarget | None) -> dict[str, Any]:
        """The target of a text and what the model predicts, as fields of the result."""
        labels, chances, target = self.classifier.labels, output.probabilities, output.target
        beside = labels_beside(labels, chances, target) if self.classifier.multi_label else ()
        fields: dict[str, Any] = {
            "target_probability": chances[target],
            "other_labels": beside,
            "multi_label": self.classifier.multi_label,
            "explained": about,
        }
        if about is None:
            return fields | {
                "target": target,
                "target_label": labels[target],
                "predicted": output.predicted,
                "predicted_label": labels[output.predicted],
                "predicted_probability": chances[output.predicted],
            }
        return fields | {
            "target": about.number,
            "target_label": about.label,
            "predicted": about.predicted,
            "predicted_label": about.predicted_label,
            "predicted_probability": about.predicted_probability,
        }

    def _provenance(self, settings: BottleneckSettings, fingerprint: str | None) -> dict[str, str]:
        found = provenance(self.classifier.model, fingerprint)
        if self.statistics is not None and not settings.noise_around_input:
            found["statistics_fingerprint"] = statistics_fingerprint(self.statistics)
        return found

    def repeated(self, repeats: int, settings: BottleneckSettings) -> list[ClassifierBottleneck]:
        """This bottleneck, and others with the statistics of bootstrap samples of the texts, as far as groups are kept.

        ValueError if neither these nor the noise vary.
        """
        statistics = self.statistics or ()
        grouped = [item for item in statistics if isinstance(item, GroupedStatistics) and item.has_groups]
        if repeats == 1 or settings.noise_around_input or not statistics or len(grouped) < len(statistics):
            if repeats > 1 and not settings.n_samples:
                raise ValueError(
                    f"repeats is {repeats}, but nothing varies: n_samples is 0, and the statistics are of one text, or "
                    "do not keep those of groups of texts; expected statistics that estimate_statistics gathered from "
                    "at least 2 texts (better a few hundred), or n_samples of at least 1"
                )
            return [self] * repeats
        others = []
        for number in range(1, repeats):
            # The same texts for all layers.
            sampled = [layer_statistics.resampled(number) for layer_statistics in grouped]
            others.append(ClassifierBottleneck(self.classifier, self.layers, sampled))
            others[-1].source = self.source
        return [self, *others]

    def _layer_name(self) -> str:
        if len(self.layers) == 1:
            return self.layers[0].key
        return f"{len(self.layers)} layers with one mask, {self.layers[0].key} to {self.layers[-1].key}"

    def _noise_origin(self, settings: BottleneckSettings) -> str:
        if settings.noise_around_input:
            return "the layer's own input (as released)"
        return "this text only" if self.statistics is None else f"{self.source} ({self.statistics[0].count:,} tokens)"


def _maskable(text: EncodedText, settings: BottleneckSettings) -> tuple[bool, ...]:
    # The published code adds noise to [CLS] and [SEP], too.
    return text.maskable(special_tokens=settings.noise_around_input)


def _of_mask(
    output: _TextOutput, text: EncodedText, settings: BottleneckSettings, granularity: str, has_steps: bool
) -> dict[str, Any]:
    """What the mask of a text keeps, as fields of the result."""
    maskable, trace, row = _maskable(text, settings), output.trace, output.row
    n_mask_values = sum(maskable) * (output.n_features if granularity == "feature" else 1)
    if granularity == "word":
        n_mask_values = sum(maskable[word.positions[0]] for word in text.word_spans)
    fields: dict[str, Any] = {
        "unneeded_bits": _unneeded_bits(settings, n_mask_values, output.n_features),
        "open_bits": _unneeded_bits(replace(settings, n_steps=0), n_mask_values, output.n_features),
    }
    if trace is None:
        return fields
    fields["masked_probability"] = float(trace.probability[row, -1])
    fields["closed_probability"] = float(trace.closed_probability[row])
    if has_steps:
        steps = (trace.objective, trace.information, trace.probability)
        fields["trace"] = TextTrace(*(tuple(values[row].tolist()) for values in steps))
    return fields


def explain_repeats(
    bottlenecks: Sequence[ClassifierBottleneck],
    encoded: Sequence[EncodedText],
    targets: Sequence[int | None],
    settings: BottleneckSettings,
    seed: int,
    return_trace: bool | Literal["final"],
    **options: Any,
) -> list[TextAttribution]:
    """The mean of the attributions of texts by several bottlenecks, each with other noise; the trace of the first."""
    if not encoded:
        return []
    of_repeats = [
        bottleneck.explain(
            encoded, targets, settings, seed=seed + number, return_trace=not number and return_trace, **options
        )
        for number, bottleneck in enumerate(bottlenecks)
    ]
    return [_mean_attribution(of_text) for of_text in zip(*of_repeats, strict=True)]


def _mean_attribution(repeats: Sequence[TextAttribution]) -> TextAttribution:
    """The first of several attributions of one text, with their mean bits, and those of each."""
    if len(repeats) == 1:
        return repeats[0]
    bits = np.array([result.bits for result in repeats])
    tokens = tuple(
        replace(token, bits=float(mean)) for token, mean in zip(repeats[0].tokens, bits.mean(0), strict=True)
    )
    return replace(repeats[0], tokens=tokens, repeats=tuple(map(tuple, bits.tolist())))


def tokens_with_bits(encoded: EncodedText, bits: Sequence[float], unknown: str | None) -> tuple[Token, ...]:
    """The tokens of a text, with their bits; those of padding, at the end, are left out."""
    columns = (encoded.tokens, bits, encoded.spans, encoded.sequences, encoded.special, encoded.words)
    return tuple(
        Token(token, token_bits, start, end, sequence, special, word, not special and token == unknown)
        for token, token_bits, (start, end), sequence, special, word in zip(*columns, strict=False)
    )


def _unneeded_bits(settings: BottleneckSettings, n_mask_values: int, n_features: int) -> float:
    """Bits per token that is not needed; 0 for the published noise, many of whose deviations away activations are."""
    if settings.noise_around_input:
        return 0.0
    return unneeded_bits(settings, n_mask_values) * n_features
