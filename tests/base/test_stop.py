"""Stop requests by signals, and a time limit for calls that may hang."""

import _thread
import os
import signal
import threading

import pytest

from runner.base.stop import StopRequest, run_with_timeout


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_only_sets_a_flag(name):
    with StopRequest() as stop:
        os.kill(os.getpid(), getattr(signal, name))
        assert stop.received == name


def test_a_second_sigint_leaves_at_once_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == "SIGTERM"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_is_known_before_the_main_thread_can_handle_it():
    """As while C code keeps it busy: the handler has not run yet, another thread knows already."""
    with StopRequest() as stop:
        assert not stop.is_wanted
        os.kill(os.getpid(), signal.SIGTERM)
        handled, stop.received = stop.received, None
        assert handled == "SIGTERM"
        assert stop.is_wanted
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_signal_to_a_forked_process_is_none_to_this_one():
    with StopRequest() as stop:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not stop.is_wanted


def test_outside_the_main_thread_it_leaves_signals_alone():
    def enter() -> None:
        with StopRequest() as stop:
            results.append(stop.received)

    results: list[str | None] = []
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert results == [None]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_work_that_ends_in_time():
    assert run_with_timeout(60, lambda: 3) == 3
    assert run_with_timeout(60, lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        run_with_timeout(60, lambda: 1 // 0)


def test_a_work_that_does_not_end():
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 seconds"):
        run_with_timeout(0.1, threading.Event().wait)


def test_an_interrupt_is_handled_while_waiting():
    def interrupt_and_go_on():
        _thread.interrupt_main()
        threading.Event().wait()

    # A shell that has started the tests in the background lets them ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_with_timeout(60, interrupt_and_go_on)
    finally:
        signal.signal(signal.SIGINT, before)
