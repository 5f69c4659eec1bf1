import pytest
from torch import nn
from transformers import AlbertConfig, BertConfig, T5Config

from captum_iba.text import default_layer, find_blocks, find_layer

from .conftest import SIZE, build


@pytest.mark.parametrize(("depth", "layer"), [(1, 1), (2, 1), (4, 2), (6, 3), (12, 6), (24, 12)])
def test_default_layer_is_in_the_middle(depth, layer):
    assert default_layer(depth) == layer


def test_blocks_are_counted_from_one(bert):
    blocks = find_blocks(bert)
    assert [block.index for block in blocks] == [1, 2, 3, 4]
    assert blocks[0].module is bert.bert.encoder.layer[0]
    assert find_layer(bert).index == 2
    assert find_layer(bert, 4).name == "bert.encoder.layer.3"


def test_a_block_by_its_name_knows_its_number(bert):
    assert find_layer(bert, "bert.encoder.layer.3") == find_layer(bert, 4)


def test_any_module_by_its_name(bert):
    block = find_layer(bert, "bert.embeddings")
    assert block.module is bert.bert.embeddings
    assert block.index is None and block.call == -1


@pytest.mark.parametrize("layer", [0, -1, 5, "bert.encoder.layer.4", ""])
def test_a_layer_that_is_not_there_is_an_error_that_says_which_are(bert, layer):
    with pytest.raises(ValueError, match=r"blocks 1 to 4 \(bert\.encoder\.layer\.0 to bert\.encoder\.layer\.3\)"):
        find_layer(bert, layer)


@pytest.mark.parametrize("layer", [2.0, True, ["bert"]])
def test_a_layer_of_another_type_is_an_error(bert, layer):
    with pytest.raises(TypeError, match="layer"):
        find_layer(bert, layer)


def test_albert_runs_one_module_for_many_blocks():
    model = build(AlbertConfig(embedding_size=8, **SIZE))
    blocks = find_blocks(model)
    assert [(block.index, block.call) for block in blocks] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert len({block.module for block in blocks}) == 1
    assert len({block.key for block in blocks}) == 4


def test_albert_with_groups():
    model = build(AlbertConfig(embedding_size=8, num_hidden_groups=2, inner_group_num=2, **SIZE))
    assert [(block.name[-1], block.call) for block in find_blocks(model)] == [
        ("0", 0),
        ("0", 1),
        ("1", 0),
        ("1", 1),
    ]


def test_of_an_encoder_decoder_the_encoder():
    config = T5Config(vocab_size=99, d_model=8, d_kv=4, d_ff=8, num_layers=3, num_decoder_layers=5, num_heads=2)
    assert [block.name for block in find_blocks(build(config))] == [f"transformer.encoder.block.{i}" for i in range(3)]


def test_a_model_without_blocks():
    with pytest.raises(ValueError, match="no list of transformer blocks"):
        find_blocks(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="parts are 0"):
        find_layer(nn.Sequential(nn.Linear(2, 2)), "nowhere")


def test_one_block_is_enough():
    assert find_layer(build(BertConfig(**{**SIZE, "num_hidden_layers": 1}))).index == 1
