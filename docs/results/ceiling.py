"""How much of what could be had at 1/9 a method finds: greedy search on the examples of a finished comparison.

python docs/results/ceiling.py OUT --examples 100

Greedy search deletes, again and again, the token without which the probability of the explained class is lowest. It
looks at the very number that the test reports, with a pass of the model for every token that is left, so it is not a
rival. It is no upper bound either (two tokens together can do what neither does alone), but it shows how much room
is left.
"""

import argparse
from pathlib import Path

import torch

from captum_iba.compare import read_results
from captum_iba.demo import embedded_model_path
from captum_iba.metrics import Delete, mean_over_seeds, paired_bootstrap, probability_drop
from captum_iba.text import Classifier
from captum_iba.text.classifier import load_classifier


def greedy_drop(classifier: Classifier, text: dict, target: int, share: float) -> float:
    """By how much the probability falls when so large a share of the tokens goes, one after the other."""
    (encoded,) = classifier.encode([text["text"]], [text["pair"]])
    inputs = classifier.tensors([encoded])
    left = [place for place, special in enumerate(encoded.special) if not special]
    count = max(1, int(share * len(left) + 0.5))
    delete, names = Delete(classifier.pad_id), list(inputs)
    before = lowest = float(classifier.probabilities(inputs)[0, target])
    for _ in range(count):
        ids, *others = inputs.values()
        removed = torch.zeros(len(left), ids.shape[1], dtype=torch.bool)
        removed[range(len(left)), left] = True
        rows = (ids.expand(len(left), -1),), tuple(other.expand(len(left), -1) for other in others)
        shorter = dict(zip(names, [tensor for part in delete(*rows, removed) for tensor in part], strict=True))
        found = classifier.probabilities(shorter)[:, target]
        best = int(found.argmin())
        lowest = float(found[best])
        inputs = {name: values[best : best + 1] for name, values in shorter.items()}
        left = [place - (place > left[best]) for number, place in enumerate(left) if number != best]
    return before - lowest


parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("out", type=Path, metavar="OUT", help="folder of a finished comparison")
parser.add_argument("--examples", type=int, help="so many of them, from the first; default: all")
options = parser.parse_args()

results = read_results(options.out)
used, share = results.configuration, results.configuration["shares"][0]
model = embedded_model_path() if used["model"] == "the embedded model" else used["model"]
classifier = Classifier(*load_classifier(model, dtype=getattr(torch, used["dtype"])), used["max_length"])
texts = {text["example"]: text for text in results.texts}
numbers = results.common[: options.examples]
with classifier.with_padding_token():
    greedy = [greedy_drop(classifier, texts[number], results.targets[number], share) for number in numbers]
drops = {"greedy search": torch.tensor(greedy, dtype=torch.float64)}
for row in results.rows:
    if row.outcomes and row.name not in used["counted_as_released"]:
        drops[row.name] = mean_over_seeds([probability_drop(outcome.morf) for outcome in row.outcomes])[: len(numbers)]

print(f"{len(numbers)} examples\n\n| method | drop at 1/9 | of greedy search |\n| --- | ---: | ---: |")
for name, drop in drops.items():
    mean, low, high = paired_bootstrap(drop)
    print(f"| {name} | {mean:.3f} [{low:.3f}, {high:.3f}] | {mean / drops['greedy search'].mean():.0%} |")
