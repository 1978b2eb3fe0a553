import _thread
import signal
import threading

import pytest

from runner.base.time_limit import within


def test_a_work_that_ends_in_time():
    assert within(60, lambda: 3) == 3
    assert within(60, lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 // 0)


def test_a_work_that_does_not_end():
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 seconds"):
        within(0.1, threading.Event().wait)


def test_who_waits_hears_of_an_interrupt_by_another_thread():
    def interrupt_and_go_on():
        _thread.interrupt_main()
        threading.Event().wait()

    # A shell that has started the tests in the background lets them ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            within(60, interrupt_and_go_on)
    finally:
        signal.signal(signal.SIGINT, before)
