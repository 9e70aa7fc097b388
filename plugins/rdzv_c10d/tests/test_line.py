"""The thread of a client: no promise is left open, however the line ends."""

import threading

import pytest
from rdzv_c10d.line import Line, LineEnded

SOON = 20.0


def test_jobs_are_done_in_order_and_what_they_raise_is_theirs():
    line = Line(lambda: ([], None))
    for number in range(3):
        line.submit(lambda client, number=number: client.append(number))
    assert line.submit(list).result(SOON) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        line.submit(lambda _: 1 / 0).result(SOON)
    line.give_up()
    assert line.join(SOON)


def test_a_job_that_waits_its_turn_when_the_line_is_given_up_is_refused():
    line, begun, may_end = Line(lambda: (None, None)), threading.Event(), threading.Event()
    first = line.submit(lambda _: begun.set() or may_end.wait(SOON))
    others = [line.submit(list) for _ in range(2)]
    assert begun.wait(SOON)
    line.give_up()
    may_end.set()
    assert first.result(SOON) is True
    for promise in others:
        with pytest.raises(LineEnded):
            promise.result(SOON)


def test_a_job_that_comes_after_the_end_is_refused():
    line = Line(lambda: (None, None))
    line.give_up()
    assert line.join(SOON)
    with pytest.raises(LineEnded):
        line.submit(list).result(SOON)


def test_a_job_for_a_client_that_cannot_be_had_is_told_why():
    line = Line(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        line.opened.result(SOON)
    with pytest.raises(ZeroDivisionError):
        line.submit(list).result(SOON)
    line.give_up()
    assert line.join(SOON)
    with pytest.raises(LineEnded):
        line.submit(list).result(SOON)
