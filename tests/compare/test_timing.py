import importlib
import re
import time
from contextlib import contextmanager
from threading import Event

from captum_iba.cli.common import every_minute
from captum_iba.cli.compare import METHOD_NAMES, TimeLeft
from captum_iba.compare import FinishedChunk, prepare
from captum_iba.methods import method_names

compare_command = importlib.import_module("captum_iba.cli.compare")  # the package has the function of this name


def test_every_run_goes_on_at_its_own_pace():
    left = TimeLeft(["slow", "fast", "later"], 100)
    assert left.seconds() is None
    left.add(FinishedChunk("slow", 20, 0, None, 10.0))  # half a second a token
    left.add(FinishedChunk("fast", 50, 0, None, 5.0))  # a tenth
    # later: it may take a hundred times as long, so it is named and not guessed
    assert abs(left.seconds() - (80 * 0.5 + 50 * 0.1)) < 1e-9 and left.not_begun() == 1
    left.add(FinishedChunk("later", 100, 0, None, 1000.0))
    assert abs(left.seconds() - (80 * 0.5 + 50 * 0.1)) < 1e-9 and left.not_begun() == 0
    assert left.paces() == {"slow": 0.5, "fast": 0.1, "later": 10.0}


def test_the_time_left_is_that_of_all_runs():
    """It was that of the runs that had begun: 59 s, with seven to come."""
    left = TimeLeft(["one", "two", "three"], 100)
    assert compare_command._left(left) == ""
    left.add(FinishedChunk("one", 20, 0, None, 10.0))
    assert compare_command._left(left) == "2 runs not begun"
    left.add(FinishedChunk("two", 100, 0, None, 10.0))
    left.add(FinishedChunk("three", 50, 0, None, 10.0))
    assert compare_command._left(left) == "50 s left"


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
    assert left.seconds() >= 100 * 0.005 and left.not_begun() == 1
    assert left.add(FinishedChunk("slow", 20, 0, None, 10.0))  # the first
    assert not left.add(FinishedChunk("slow", 20, 0, None, 10.0))
    assert left.seconds_of("slow") == 60 * 0.5


def test_a_line_a_minute():
    said = Event()
    with every_minute(said.set, 0.001):
        assert said.wait(10)


def test_a_line_names_no_method_before_one_has_begun(tmp_path, config_of, monkeypatch, capsys):
    """It said "0%, at " until the first text was scored."""
    said = []

    @contextmanager
    def at_once(say):
        say()
        yield
        say()

    monkeypatch.setattr(compare_command, "every_minute", at_once)
    monkeypatch.setattr(compare_command, "note", lambda line, quiet: said.append(line))
    compare_command._compute(prepare(config_of(), tmp_path), quiet=True)
    assert said[0] == "0%, no text is scored yet"
    assert re.fullmatch(r"100%, at [\w@=]+, 0 s left, seconds per example: iba [\d.e-]+, leave_one_out .*", said[-1])


def test_the_help_names_the_methods():
    assert METHOD_NAMES.split(", ") == method_names()
