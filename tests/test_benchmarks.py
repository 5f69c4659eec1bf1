import json
import warnings

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from benchmarks import counts, images, throughput
from benchmarks.arithmetic import Shape, count_operations, floor, matrix_product_rate
from benchmarks.procedures import PUBLISHED
from benchmarks.published import published_attribution
from benchmarks.speed import main
from captum_iba import InformationBottleneckAttribution

LENGTH = 12
LAYER = 3


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64)
    # Larger weights than the usual start's, so that the class depends on the text.
    config.initializer_range = 0.3
    return BertForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def inputs():
    ids = torch.randint(0, 60, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def published(model, inputs, **settings):
    torch.manual_seed(2)
    name = f"bert.encoder.layer.{LAYER - 1}"
    return published_attribution(model, name, inputs, target=1, **settings)


def test_agrees_with_our_preset_as_released(model, inputs):
    def forward(ids, mask):
        return model(ids, attention_mask=mask).logits

    layer = model.bert.encoder.layer[LAYER - 1]
    ours = InformationBottleneckAttribution(forward, layer).attribute(
        inputs["input_ids"],
        target=1,
        additional_forward_args=(inputs["attention_mask"],),
        preset="as_released",
    )
    theirs = published(model, inputs)
    assert theirs.shape == ours[0].shape
    # The noise differs, but its standard deviation of 0.003 hardly moves the mask.
    scores = torch.stack([ours[0].sum(-1), theirs.sum(-1)])
    assert torch.corrcoef(scores)[0, 1] > 0.999
    torch.testing.assert_close(scores[0], scores[1], rtol=0.02, atol=1.0)


def test_huge_beta_closes_the_mask(model, inputs):
    opened = published(model, inputs, beta=0.0, n_steps=1)
    closed = published(model, inputs, beta=1e6, n_steps=30)
    assert closed.sum() < 1e-3 * opened.sum()


def test_no_step_gives_the_closed_form(model, inputs):
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    mask = torch.sigmoid(torch.tensor(5.0, dtype=torch.float64))
    x = (states[LAYER] - states[LAYER - 1])[0].double() / 1e-5**0.5
    expected = ((mask * x) ** 2 + (1 - mask) ** 2 - 1) / 2 - torch.log(1 - mask)
    # One step with learning rate 0: the mask is as it began.
    bits = published(model, inputs, n_steps=1, learning_rate=0.0)
    torch.testing.assert_close(bits.double(), expected / torch.log(torch.tensor(2.0)), rtol=1e-3, atol=1e-3)


def test_leaves_the_model_as_it_was_except_for_gradients(model, inputs):
    modules = [type(module) for module in model.modules()]
    losses = []
    published(model, inputs, n_steps=2, on_step=losses.append)
    assert len(losses) == 2
    assert [type(module) for module in model.modules()] == modules
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_arithmetic_is_what_a_counter_counts(model, inputs):
    shape = Shape.of(model.config)
    with torch.no_grad():
        assert count_operations(lambda: model(**inputs)) == shape.forward(LENGTH)

    states = torch.randn(1, LENGTH, shape.hidden, requires_grad=True)

    def after():
        hidden = states * 1  # the counter can't follow a leaf into a module
        for layer in model.bert.encoder.layer[LAYER:]:
            hidden = layer(hidden)
        logits = model.classifier(model.bert.pooler(hidden))
        torch.autograd.grad(logits[:, 1].sum(), states)

    model.requires_grad_(False)
    try:
        assert count_operations(after) == shape.after(LAYER, LENGTH)
    finally:
        model.requires_grad_(True)


def test_floor_adds_up(model):
    shape = Shape.of(model.config)
    assert floor(shape, 4, LENGTH, 2, 3) == shape.forward(LENGTH) + 6 * 2 * shape.head()


def test_rate_is_positive(model):
    assert matrix_product_rate(Shape.of(model.config), rows=16, repeats=1) > 0


def test_command_writes_table_and_figures(model, tmp_path, capsys):
    model.save_pretrained(tmp_path / "model")
    capsys.readouterr()
    options = ["--lengths=8", "--layers", "1", "3", "--texts", "1", "2", "--rivals", "--repeats=2"]
    main([f"--model={tmp_path / 'model'}", *options, f"--out={tmp_path / 'speed'}"])
    table = (tmp_path / "speed.md").read_text(encoding="utf-8")
    assert table in capsys.readouterr().out
    timings = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))["timings"]
    first = timings[0]
    assert first["name"] == PUBLISHED
    assert first["times_less"] == [1.0, 1.0]
    assert {(t["layer"], t["texts"]) for t in timings if t["name"] == "paper"} == {(1, 1), (3, 1), (3, 2)}
    for timing in timings:
        assert len(timing["seconds"]) == 2
        assert timing["name"] in table


def test_throughput_counts_every_text(model, tmp_path, capsys):
    model.save_pretrained(tmp_path / "model")
    rows = [json.dumps({"text": "word " * count}) for count in (3, 9, 20, 5, 14)]
    (tmp_path / "data.jsonl").write_text("\n".join(rows), encoding="utf-8")
    paths = [f"--model={tmp_path / 'model'}", f"--data={tmp_path / 'data.jsonl'}", f"--out={tmp_path / 'found'}"]
    throughput.main([*paths, "--texts=5", "--batch=2", "--device=cpu"])
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["texts"] == 5 and found["seconds"] > 0
    assert found["minutes"] == pytest.approx(25_000 * found["seconds"] / 5 / 60)
    assert "5 texts of 15 tokens on average" in capsys.readouterr().out


def test_table_of_image_methods(tmp_path, capsys):
    pixels = torch.randint(0, 256, (3, 8, 8, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    np.savez(tmp_path / "test.npz", images=pixels.numpy())
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ViTForImageClassification(ViTConfig(image_size=8, patch_size=2, num_labels=3, **size)).save_pretrained(
        tmp_path / "vit"
    )
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(tmp_path / "vit")
    paths = [f"--model={tmp_path / 'vit'}", f"--data={tmp_path / 'test.npz'}", f"--rows={tmp_path / 'rows'}"]
    threads = torch.get_num_threads()
    try:
        images.main([*paths, f"--out={tmp_path / 'table.md'}", "--images=2", "--tile=2", "--methods", "random", "ig"])
    finally:
        torch.set_num_threads(threads)
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    shown = "--data test.npz --images 2 --tile 2 --methods random ig --rows ROWS`"
    assert shown in table and "| random | " in table and "2 images; " in table
    assert str(tmp_path) not in table and "ig " in capsys.readouterr().out


def test_nothing_costs_more_than_it_did():
    """Passes, rows, operations and bytes; ``python -m benchmarks.counts --keep`` keeps a change that is meant."""
    found = counts.count_all()
    for name, case in found.items():
        if "operations needed" in case and "whole passes" not in name:
            # Ours never runs less than has to be run, and replay keeps it near that.
            assert 1 <= case["operations"] / case["operations needed"] < 1.2, name
    assert counts.regressions(found, json.loads(counts.KEPT.read_text(encoding="utf-8"))) == []
    dearer = {name: {what: number - 1 for what, number in case.items()} for name, case in found.items()}
    assert len(counts.regressions(found, dearer)) == sum(len(case) - ("peak bytes" in case) for case in found.values())
    assert len(counts.regressions(found, {})) == sum(map(len, found.values()))
    assert counts.regressions({}, found) == [f"{name}: kept, and not counted any more" for name in found]


@pytest.mark.parametrize("rows_a_pass", [4, 8])
def test_memory_grows_with_the_rows_of_a_pass_and_not_with_the_texts(rows_a_pass):
    model = counts.load_model()
    blocks = list(model.base_model.encoder.layer)
    iba = InformationBottleneckAttribution(lambda ids: model(input_ids=ids).logits, blocks)
    ids = torch.randint(0, 200, (32, 24), generator=torch.Generator().manual_seed(0))
    held = {}
    for texts in (8, 32):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no statistics
            with counts.PeakBytes() as peak:
                bits = iba.attribute(ids[:texts], target=1, share_mask=True, internal_batch_size=rows_a_pass)
        held[texts] = peak.peak - sum(p.nbytes for p in model.parameters()) - 2 * bits.nbytes
    assert held[32] < 1.1 * held[8]
