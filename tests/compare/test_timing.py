from captum_iba.cli.compare import TimeLeft
from captum_iba.compare import FinishedChunk


def test_every_run_goes_on_at_its_own_pace():
    left = TimeLeft(["slow", "fast", "later"], 100)
    assert left.seconds() is None
    left.add(FinishedChunk("slow", 20, 0, None, 10.0))  # half a second a token
    left.add(FinishedChunk("fast", 50, 0, None, 5.0))  # a tenth
    # later: as the mean of the others, 0.3
    assert abs(left.seconds() - (80 * 0.5 + 50 * 0.1 + 100 * 0.3)) < 1e-9


def test_what_was_there_already_takes_no_time_and_tells_none():
    left = TimeLeft(["one"], 100)
    left.add(FinishedChunk("one", 60, 0, None, None))
    assert left.seconds() is None
    left.add(FinishedChunk("one", 20, 0, None, 4.0))
    assert abs(left.seconds() - 20 * 0.2) < 1e-9
    left.add(FinishedChunk("one", 20, 0, None, None))
    assert left.seconds() == 0
