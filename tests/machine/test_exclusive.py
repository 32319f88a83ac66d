"""Turns: with one thread there is no lock; from the second on every public verb of the guarded objects holds it."""

from __future__ import annotations

import threading

from windtunnel.machine.exclusive import Around, Turns


class Counter:
    """A read and a write with a moment between them, in which another thread may come."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, between: threading.Event | None = None) -> None:
        """Add one."""
        seen = self.count
        if between is not None:
            between.wait(0.05)
        self.count = seen + 1

    def twice(self) -> None:
        """A verb that calls another."""
        self.add()
        self.add()


def run(*work: threading.Thread) -> None:
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()


def test_nothing_is_wrapped_before_there_is_a_second_thread() -> None:
    turns, counter = Turns(threading.RLock), Counter()
    turns.guard(counter)
    assert "add" not in vars(counter)
    turns.begin()
    assert "add" in vars(counter)


def test_threads_lose_nothing() -> None:
    turns, counter = Turns(threading.RLock), Counter()
    turns.guard(counter)
    turns.begin()
    never = threading.Event()
    run(*(threading.Thread(target=counter.add, args=(never,)) for _ in range(4)))
    counter.twice()
    assert counter.count == 6


def test_what_is_guarded_later_takes_turns_at_once() -> None:
    turns, counter = Turns(threading.RLock), Counter()
    turns.begin()
    turns.guard(counter)
    assert "add" in vars(counter)


def test_a_forked_child_does_not_wait_for_a_lock_that_nobody_holds_there() -> None:
    turns, counter = Turns(threading.RLock), Counter()
    turns.guard(counter)
    turns.begin()
    run(threading.Thread(target=turns.lock.__enter__))  # held for ever by a thread that is gone
    turns.forked()
    counter.add()
    assert counter.count == 1


def test_who_watches_comes_and_goes_in_any_order_and_the_turns_stay() -> None:
    turns, counter = Turns(threading.RLock), Counter()
    turns.guard(counter)
    heard: list[str] = []

    def watching(name: str) -> Around:
        def around(verb: Around, *args: object) -> object:
            heard.append(name)
            return verb(*args)

        return around

    one, two = watching("one"), watching("two")
    turns.watch(counter, ["add"], one)
    turns.begin()
    turns.watch(counter, ["add"], two)
    counter.add()
    assert sorted(heard) == ["one", "two"]
    turns.unwatch(counter, ["add"], one)
    counter.add()
    assert heard[2:] == ["two"]
    turns.unwatch(counter, ["add"], two)
    never = threading.Event()
    run(*(threading.Thread(target=counter.add, args=(never,)) for _ in range(4)))
    assert (counter.count, len(heard)) == (6, 3)


def test_nothing_is_left_of_who_watched_a_machine_of_one_thread() -> None:
    turns, counter = Turns(threading.RLock), Counter()
    turns.guard(counter)
    turns.watch(counter, ["add"], print)
    turns.unwatch(counter, ["add"], print)
    assert "add" not in vars(counter)
