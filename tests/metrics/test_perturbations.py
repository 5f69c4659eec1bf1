import pytest
import torch

from captum_iba.metrics import BaselineValue, Delete, MaskOut, ReplaceToken

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
REMOVED = torch.tensor([[False, True, False, True], [False, False, True, False]])


def test_delete_packs_left_and_fills_up_right():
    mask = torch.ones_like(IDS)
    hidden = torch.arange(16.0).view(2, 4, 2)
    (ids, others), (further,) = Delete(99)((IDS, hidden), (mask.bool(),), REMOVED)
    assert ids.tolist() == [[5, 7, 99], [9, 10, 12]]
    assert others.tolist() == [[[0, 1], [4, 5], [0, 0]], [[8, 9], [10, 11], [14, 15]]]
    assert further.tolist() == [[True, True, False], [True, True, True]]


def test_delete_leaves_other_tensors_alone():
    flat, other = torch.ones(2), torch.ones(2, 3)
    _, (a, b, c) = Delete(0)((IDS,), (flat, other, "text"), REMOVED)
    assert a is flat
    assert b is other
    assert c == "text"


def test_padding_is_what_delete_fills_up_with_and_nothing_may_be_removed():
    ids = torch.tensor([[5, 0, 0, 0, 0], [0, 0, 5, 6, 7]])
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]])
    removable = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]).bool()
    # The third token of the first row is a real one with the number of the padding.
    expected = [[False, False, False, True, True], [True, True, False, False, False]]
    assert Delete(0).padding((ids,), (mask,), removable).tolist() == expected
    assert not Delete(1).padding((ids,), (mask,), removable).any()
    # Without a mask, only the number tells.
    assert Delete(0).padding((ids,), (), removable).tolist()[0] == [False, False, True, True, True]


def test_replace_token():
    (ids, other), _ = ReplaceToken(1)((IDS, IDS), (), REMOVED)
    assert ids.tolist() == [[5, 1, 7, 1], [9, 10, 1, 12]]
    assert other is IDS


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_mask_out(dtype):
    mask = torch.ones(2, 4, dtype=dtype)
    _, (first, masked) = MaskOut(2)((IDS,), ("text", mask), REMOVED)
    assert first == "text"
    assert torch.equal(masked.bool(), ~REMOVED)
    assert masked.dtype == dtype
    assert mask.all()


@pytest.mark.parametrize("argument", [-1, 2, 3, 7])
def test_mask_out_names_the_wrong_argument(argument):
    with pytest.raises(ValueError, match=f"MaskOut: argument {argument} of forward_func is"):
        MaskOut(argument)((IDS,), (torch.ones(2, 4), torch.ones(2, 3), None), REMOVED)


def test_baseline_value_broadcasts():
    image = torch.ones(1, 2, 2, 2)
    removed = torch.tensor([[[True, False], [False, False]]])
    (masked,), _ = BaselineValue(torch.tensor([3.0, 4.0]).view(2, 1, 1))((image,), (), removed)
    assert masked.tolist() == [[[[3, 1], [1, 1]], [[4, 1], [1, 1]]]]
