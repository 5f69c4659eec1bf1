"""Ctrl-C that is not lost."""

from __future__ import annotations

import signal
import sys
import threading
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SECONDS = 1.0


class _Interruption:
    """Of the interrupt that is on its way: whether it has been caught, and what raises it again."""

    caught = False
    repeated = False
    timer: threading.Timer | None = None


def interrupt_is_caught() -> None:
    """Say that Ctrl-C has come to where it is handled."""
    _Interruption.caught = True
    if _Interruption.timer is not None:
        _Interruption.timer.cancel()


@contextmanager
def repeated_interrupts() -> Iterator[None]:
    """Context in which Ctrl-C is raised again every second until :func:`interrupt_is_caught`.

    A library loses it where it ignores every exception: in a bare ``except``, or while an object is deleted. While the
    exception is on its way, in a ``finally`` or ``with``, it is not raised a second time, unless by another Ctrl-C.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    # Another handler, or none in the background of a shell, stays as it is.
    if not on_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _Interruption.caught = _Interruption.repeated = False
    hook = sys.unraisablehook
    sys.unraisablehook = _ignore_interrupts
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        interrupt_is_caught()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook


def _interrupt(number: int, frame: Any) -> None:
    if _Interruption.caught:
        return
    repeated, _Interruption.repeated = _Interruption.repeated, False
    _Interruption.timer = threading.Timer(_SECONDS, _interrupt_again)
    _Interruption.timer.daemon = True
    _Interruption.timer.start()
    if repeated and isinstance(sys.exc_info()[1], KeyboardInterrupt):
        return
    raise KeyboardInterrupt


def _interrupt_again() -> None:
    if not _Interruption.caught:
        _Interruption.repeated = True
        interrupt_main()


def _ignore_interrupts(unraisable: sys.UnraisableHookArgs) -> None:
    """Print what is ignored while an object is deleted, but not an interrupt, which comes again."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
