import time
from threading import Event

from captum_iba.cli.compare import METHOD_NAMES, TimeLeft, every_minute
from captum_iba.compare import FinishedChunk
from captum_iba.methods import method_names


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


def test_a_run_is_estimated_within_its_first_chunk():
    left = TimeLeft(["slow", "later"], 100)
    time.sleep(0.01)
    left.begin("slow", 2)
    assert left.seconds() >= 200 * 0.005
    assert left.add(FinishedChunk("slow", 20, 0, None, 10.0))  # the first
    assert not left.add(FinishedChunk("slow", 20, 0, None, 10.0))
    assert left.seconds_of("slow") == 60 * 0.5


def test_a_line_a_minute():
    said = Event()
    with every_minute(said.set, 0.001):
        assert said.wait(10)


def test_the_help_names_the_methods():
    assert METHOD_NAMES.split(", ") == method_names()
