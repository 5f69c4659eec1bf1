"""A call of ``explain`` carried out: encoded texts through a bottleneck, results with bits per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from captum_iba._compat import progress
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.information_bottleneck import InformationBottleneckAttribution
from captum_iba.attr.settings import BottleneckSettings
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText, per_token
from captum_iba.text.layers import Block, token_feature_required
from captum_iba.text.result import TextAttribution, Token, Trace

NO_STATISTICS = (
    "no statistics given: the noise takes those of each text itself, and bits are far less faithful; call "
    "estimate_statistics with a few hundred texts first"
)


@dataclass(frozen=True)
class Place:
    """Where bottlenecks go, and what their noise is like."""

    classifier: Classifier
    layers: tuple[Block, ...]
    statistics: tuple[FeatureStatistics, ...] | None
    attribution: InformationBottleneckAttribution

    @classmethod
    def of(
        cls, classifier: Classifier, layers: tuple[Block, ...], statistics: tuple[FeatureStatistics, ...] | None
    ) -> Place:
        """With the attribution that belongs there."""
        modules = [block.module for block in layers]
        attribution = InformationBottleneckAttribution(classifier.competing, modules, statistics=statistics)
        attribution._warned.add("statistics")  # the explainer says it, in its own terms
        return cls(classifier, layers, statistics, attribution)


@dataclass(frozen=True)
class Call:
    """What one call of ``explain`` asks for, the same for all its texts, and how it is done for some of them."""

    place: Place
    preset: str
    granularity: str
    settings: BottleneckSettings
    seed: int
    internal_batch_size: int | None
    return_trace: bool

    def _carriers(self, encoded: EncodedText) -> list[int]:
        """1 for each token behind a bottleneck."""
        # The published code puts noise into [CLS] and [SEP] too; here they pass untouched but for its preset.
        return [1 if self.preset == "as_released" else int(not special) for special in encoded.special]

    def _recorded(self) -> dict[str, Any]:
        """The settings, for the result."""
        kept = asdict(self.settings)
        del kept["noise_around_input"], kept["granularity"]
        return {**kept, "seed": self.seed}

    def explain(
        self, encoded: list[EncodedText], targets: list[int | None], show_progress: bool
    ) -> list[TextAttribution]:
        """Texts that go through the model together; a target None is the predicted class."""
        classifier = self.place.classifier
        # Gradients cannot flow through what is made in inference mode.
        with classifier.padding_known(), torch.inference_mode(False):
            inputs = classifier.tensors(encoded, whole_windows=True)
            with token_feature_required(self.place.layers, inputs["input_ids"].shape):
                probabilities = classifier.probabilities(inputs)
            predicted = probabilities.argmax(-1).tolist()
            chosen = [best if wanted is None else wanted for wanted, best in zip(targets, predicted, strict=True)]
            bits, trace = self._attribute(encoded, inputs, chosen, show_progress)
        return [
            self._result(
                item,
                bits[row].tolist(),
                probabilities[row].tolist(),
                predicted[row],
                chosen[row],
                None if trace is None else trace[row],
            )
            for row, item in enumerate(encoded)
        ]

    def explain_all(
        self, encoded: Sequence[EncodedText], targets: Sequence[int | None], batch_size: int, show_progress: bool
    ) -> list[TextAttribution]:
        """Texts of any length in batches, and the results in their order."""
        batches = self.place.classifier.batches([len(item) for item in encoded], batch_size)
        results: dict[int, TextAttribution] = {}
        for batch in progress(batches, desc="Texts") if show_progress and len(batches) > 1 else batches:
            found = self.explain(
                [encoded[i] for i in batch], [targets[i] for i in batch], show_progress and len(batches) == 1
            )
            results.update(zip(batch, found, strict=True))
        return [results[i] for i in range(len(encoded))]

    def _attribute(
        self,
        encoded: list[EncodedText],
        inputs: dict[str, Tensor],
        targets: list[int],
        show_progress: bool,
    ) -> tuple[Tensor, list[Trace] | None]:
        """Bits of every token, (B, T), and the traces."""
        input_ids, *others = inputs.values()
        device, length = input_ids.device, input_ids.shape[1]
        used = self.settings
        found = self.place.attribution.attribute(
            input_ids,
            target=torch.tensor(targets, device=device),
            additional_forward_args=tuple(others) or None,
            feature_mask=per_token([_groups(item) for item in encoded], -1, device, length)
            if self.granularity == "word"
            else None,
            bottleneck_mask=per_token([self._carriers(item) for item in encoded], 0, device, length).bool(),
            preset=self.preset,
            granularity=used.granularity,
            beta=used.beta,
            n_steps=used.n_steps,
            n_samples=used.n_samples,
            complement=used.complement,
            learning_rate=used.learning_rate,
            momentum=used.momentum,
            antithetic=used.antithetic,
            alternate=used.alternate,
            loss="nll" if self.place.classifier.multi_label else "cross_entropy",
            seed=self.seed,
            share_mask=True,
            layer_call=[block.call for block in self.place.layers],
            feature_dim=-1,
            internal_batch_size=self.internal_batch_size,
            show_progress=show_progress,
            return_trace=self.return_trace,
        )
        bits, trace = found if self.return_trace else (found, None)
        if isinstance(bits, tuple):  # the block also returns something else, T5 its position bias
            bits = next((part for part in bits if part.shape[:2] == input_ids.shape), bits[0])
        rows = None
        if trace is not None:
            each = zip(trace.loss.tolist(), trace.information.tolist(), trace.probability.tolist(), strict=True)
            rows = [Trace(*map(tuple, row)) for row in each]
        return bits.cpu().double().sum(-1), rows

    def _result(
        self,
        encoded: EncodedText,
        bits: list[float],
        probabilities: list[float],
        predicted: int,
        target: int,
        trace: Trace | None,
    ) -> TextAttribution:
        tokens = zip(
            encoded.tokens,
            bits,
            encoded.spans,
            encoded.sequences,
            encoded.special,
            encoded.words,
            strict=False,
        )  # bits goes on through the padding
        layers, labels = self.place.layers, self.place.classifier.labels
        return TextAttribution(
            text=encoded.text,
            pair=encoded.pair,
            tokens=tuple(
                Token(token, number, start, end, sequence, special, word)
                for token, number, (start, end), sequence, special, word in tokens
            ),
            target=target,
            target_label=labels[target],
            target_probability=probabilities[target],
            predicted=predicted,
            predicted_label=labels[predicted],
            predicted_probability=probabilities[predicted],
            layer=_describe(layers),
            layer_index=layers[0].index if len(layers) == 1 else None,
            method="iba",
            preset=self.preset,
            granularity=self.granularity,
            statistics=self._origin(),
            settings=self._recorded(),
            tokens_cut=encoded.cut,
            trace=trace,
        )

    def _origin(self) -> str:
        if self.settings.noise_around_input:
            return "the layer's own input (as released)"
        if self.place.statistics is None:
            return "this text only"
        return f"a data set of {self.place.statistics[0].count} positions"


def _describe(layers: tuple[Block, ...]) -> str:
    if len(layers) == 1:
        return layers[0].key
    return f"{len(layers)} layers with one mask, {layers[0].key} to {layers[-1].key}"


def _groups(encoded: EncodedText) -> list[int]:
    """The number of each token's word; special tokens have numbers of their own, behind those."""
    return [len(encoded) + i if word is None else word for i, word in enumerate(encoded.words)]
