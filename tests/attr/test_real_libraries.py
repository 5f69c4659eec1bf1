"""Models as other libraries change them, with the libraries themselves."""

import warnings

import pytest
import torch
from architectures import SETTINGS, assert_same, build

from captum_iba import FeatureStatistics, InformationBottleneckAttribution

pytest.importorskip("transformers")

# peft asks for it by its older name, too.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

TARGETS = [0, 1, 2]


def bits_of(forward, layer, inputs, **changes):
    """Bits of a layer, with statistics of its own."""
    mask = inputs[1].bool()
    statistics = FeatureStatistics.estimate(forward, layer, [inputs], lambda batch: mask)
    iba = InformationBottleneckAttribution(forward, layer, statistics=statistics)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not replayed.*")
        found = iba.attribute(inputs, TARGETS, bottleneck_mask=mask, **{**SETTINGS, **changes})
    return found[0] if isinstance(found, tuple) else found


def flags(model):
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def hooks(model):
    return {
        name: (len(module._forward_hooks), len(module._forward_pre_hooks), "forward" in vars(module))
        for name, module in model.named_modules()
    }


@pytest.mark.parametrize("replay", [True, False])
def test_offloaded_by_accelerate(replay):
    accelerate = pytest.importorskip("accelerate")
    plain = build("BERT")
    expected = bits_of(plain.forward, plain.layer, plain.inputs, replay=replay)
    architecture = build("BERT")
    model = architecture.model
    frozen = "bert.encoder.layer.0.output.dense.weight"
    model.get_parameter(frozen).requires_grad_(False)
    count = len(flags(model))
    accelerate.cpu_offload(model, torch.device("cpu"))
    before, hooked = flags(model), hooks(model)
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    assert before[frozen] is False and sum(before.values()) == count - 1
    bits = bits_of(architecture.forward, architecture.layer, architecture.inputs, replay=replay)
    assert_same(bits, expected, 1e-6)
    assert flags(model) == before
    assert hooks(model) == hooked
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(architecture.forward(*plain.inputs), plain.forward(*plain.inputs))


@pytest.mark.parametrize("replay", [True, False])
def test_adapters_of_peft(replay):
    peft = pytest.importorskip("peft")

    config = peft.LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    architecture = build("BERT")
    expected = {None: bits_of(architecture.forward, architecture.layer, architecture.inputs, replay=replay)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = peft.get_peft_model(architecture.model, config, "first").eval()
        model.add_adapter("second", config)

    def forward(ids, mask):
        return model(input_ids=ids, attention_mask=mask).logits

    layer = model.base_model.model.bert.encoder.layer[1]
    # What is expected: the weights of each adapter, merged into a model that knows nothing of peft.
    for name in ("first", "second"):
        with torch.random.fork_rng(devices=[]):
            one = peft.get_peft_model(build("BERT").model, config).eval()
        own = {key.replace(".default.", f".{name}."): key for key in one.state_dict()}
        one.load_state_dict({own[key]: value for key, value in model.state_dict().items() if key in own})
        bare = one.merge_and_unload().eval()

        def forward_bare(ids, mask, bare=bare):
            return bare(input_ids=ids, attention_mask=mask).logits

        expected[name] = bits_of(forward_bare, bare.bert.encoder.layer[1], architecture.inputs, replay=replay)

    for name in ("first", "second", "first"):
        model.set_adapter(name)
        before, weights = flags(model), {key: value.clone() for key, value in model.state_dict().items()}
        assert_same(bits_of(forward, layer, architecture.inputs, replay=replay), expected[name], 1e-3)
        assert flags(model) == before
        assert model.active_adapter == name and model.active_adapters == [name]
        assert all(value.equal(weights[key]) for key, value in model.state_dict().items())
    with model.disable_adapter():
        assert_same(bits_of(forward, layer, architecture.inputs, replay=replay), expected[None], 1e-3)
    apart = [(expected[one] - expected[other]).abs().max() for one, other in [("first", "second"), ("first", None)]]
    assert min(apart) > 0.01 * expected[None].max()


@pytest.mark.filterwarnings("ignore:.*global hooks on modules:UserWarning")
@pytest.mark.parametrize(
    ("what", "backend"), [("model", "eager"), ("block", "aot_eager"), ("later block", "aot_eager"), ("block", "eager")]
)
def test_compiled(what, backend):
    plain = build("BERT")
    expected = bits_of(plain.forward, plain.layer, plain.inputs)
    architecture = build("BERT")
    model = architecture.model
    compiled = torch.compile(model, backend=backend) if what == "model" else model
    if what != "model":
        architecture.block(0 if what == "block" else 1).compile(backend=backend)

    def forward(ids, mask):
        return compiled(input_ids=ids, attention_mask=mask).logits

    try:
        with torch.no_grad():
            before = forward(*architecture.inputs)  # compiled here, without hooks
        for replay in (True, False):
            bits = bits_of(forward, architecture.layer, architecture.inputs, replay=replay)
            assert_same(bits, expected, 1e-3)
        with torch.no_grad():
            torch.testing.assert_close(forward(*architecture.inputs), before)
        torch.testing.assert_close(before, plain.forward(*plain.inputs), rtol=1e-4, atol=1e-4)
    finally:
        torch.compiler.reset()


@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_autocast_to_half_precision(name):
    plain = build(name)
    expected = bits_of(plain.forward, plain.layer, plain.inputs)

    def forward(ids, mask):
        with torch.autocast("cpu", torch.bfloat16):
            return plain.forward(ids, mask)

    whole, replayed = (bits_of(forward, plain.layer, plain.inputs, replay=replay) for replay in (False, True))
    with torch.autocast("cpu", torch.bfloat16):
        outside = bits_of(plain.forward, plain.layer, plain.inputs, replay=False)
    for bits in (whole, replayed, outside):
        assert bits.isfinite().all()
        # Rounding turns a few close decisions of the mask, but not the whole picture.
        assert torch.corrcoef(torch.stack([bits.float().flatten(), expected.flatten()]))[0, 1] > 0.9
    assert_same(replayed, whole)
    assert not torch.is_autocast_enabled("cpu")
    assert all(parameter.dtype == torch.float32 for parameter in plain.model.parameters())


@pytest.mark.parametrize("name", ["BERT", "Llama", "T5"])
@pytest.mark.parametrize("trains", [True, False])
def test_gradient_checkpointing(name, trains):
    plain = build(name)
    expected = bits_of(plain.forward, plain.layer, plain.inputs)
    architecture = build(name)
    architecture.model.gradient_checkpointing_enable()
    architecture.model.train(trains)
    for replay in (True, False):
        assert_same(bits_of(architecture.forward, architecture.layer, architecture.inputs, replay=replay), expected)
    assert architecture.model.is_gradient_checkpointing
    assert all(module.training is trains for module in architecture.model.modules())
