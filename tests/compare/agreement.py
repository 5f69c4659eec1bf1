"""Whether two computations of the same records agree, as docs/scale.md promises under "The same records"."""

import math

TOLERANCE = 1e-5  # of the greatest number of a list, or of 1; why it is so much is said there


def assert_agree(found, expected, where="all"):
    """The same in all that is no float: examples, their order, texts, decisions, errors. Floats within the tolerance.

    So scores that are further apart than twice the tolerance have the same order.
    """
    assert type(found) is type(expected), where
    if isinstance(expected, dict):
        assert list(found) == list(expected), where
        for name, value in expected.items():
            assert_agree(found[name], value, f"{where}, {name}")
    elif isinstance(expected, list) and expected and all(isinstance(value, float) for value in [*expected, *found]):
        assert len(found) == len(expected), where
        greatest = max([1, *(abs(value) for value in expected if math.isfinite(value))])
        off = [(a, b) for a, b in zip(found, expected, strict=True) if _distance(a, b) > TOLERANCE * greatest]
        assert not off, f"{where}: {off}"
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for i, value in enumerate(expected):
            assert_agree(found[i], value, f"{where}[{i}]")
    elif isinstance(expected, float):
        assert_agree([found], [expected], where)
    else:
        assert found == expected, where


def _distance(a, b):
    return 0 if a == b or (math.isnan(a) and math.isnan(b)) else math.inf if math.isnan(a - b) else abs(a - b)
