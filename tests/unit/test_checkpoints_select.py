"""The choice is always the newest restorable checkpoint of the chain, and never goes backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_resume_provider.checkpoints.reference import Reference
from airflow_resume_provider.checkpoints.select import select


def uri(attempt: int, index: int) -> str:
    return f"gs://b/l/attempts/{attempt:04d}/checkpoints/{index:06d}"


@dataclass
class World:
    """What a lineage shows. `defects` maps URIs to reasons; `looked` records what was asked for."""

    commits: dict[int, list[int]] = field(default_factory=dict)
    sources: dict[int, str] = field(default_factory=dict)
    defects: dict[str, str] = field(default_factory=dict)
    looked: list[int] = field(default_factory=list)
    elsewhere: set[str] = field(default_factory=set)

    def attempts(self) -> Sequence[int]:
        return list(self.commits)

    def checkpoints(self, attempt: int) -> Sequence[tuple[int, str]]:
        self.looked.append(attempt)
        return [(index, uri(attempt, index)) for index in self.commits[attempt]]

    def resumed_from(self, attempt: int) -> str:
        return self.sources.get(attempt, "")

    def place(self, where: str) -> tuple[int, int] | None:
        if not where.startswith("gs://b/l/"):
            return None
        _, _, attempt, _, index = where.rsplit("/", 4)
        return int(attempt), int(index)

    def examine(self, where: str) -> Reference | str:
        if where in self.defects:
            return self.defects[where]
        if where in self.elsewhere:
            return Reference(where, 0, 0, 1)
        _, _, attempt, _, index = where.rsplit("/", 4)
        if int(index) not in self.commits.get(int(attempt), ()):
            return "it is not there"
        return Reference(where, int(index), 100 * int(index), int(attempt))


def chosen(world: World, attempt: int, **options: object) -> str | None:
    reference = select(attempt, world, **options).reference  # type: ignore[arg-type]
    return reference.uri if reference else None


def test_first_attempt_is_fresh() -> None:
    """M1: nothing is listed, nothing is an error, and it is said why."""
    choice = select(1, World())
    assert choice.reference is None
    assert choice.passed_over == ()
    assert "no earlier attempt" in choice.why


def test_newest_attempt_first_and_no_further_than_needed() -> None:
    """M2: earlier attempts are visited newest first, up to the first restorable one."""
    world = World({1: [0, 1], 2: [2], 3: [3]})
    assert chosen(world, 4) == uri(3, 3)
    assert world.looked == [3]


def test_a_corrected_warm_start_counts_and_an_own_offer_changes_nothing() -> None:
    """Another warm start that an earlier attempt recorded is replaced by the one that is named now."""
    wrong, right = "gs://b/wrong", "gs://b/right"
    world = World({1: [], 2: []}, sources={1: wrong}, elsewhere={wrong, right})
    assert chosen(world, 3) == wrong
    assert chosen(world, 3, fallback=right) == right
    assert chosen(world, 3, fallback=wrong) == wrong
    world.commits[2] = [0]
    world.defects[uri(2, 0)] = "broken"
    assert chosen(world, 3, fallback=uri(2, 0)) == wrong


def test_equal_and_newer_attempts_are_never_looked_at() -> None:
    """M2: neither the attempt itself nor a newer one is asked about."""
    world = World({1: [0], 2: [1], 3: [9]})
    assert chosen(world, 2) == uri(1, 0)
    assert world.looked == [1]


def test_restarted_attempt_sees_its_own_commits() -> None:
    """The same attempt started a second time goes on from what it committed itself."""
    assert chosen(World({1: [0], 2: [1]}), 2, restarted=True) == uri(2, 1)


def test_numbers_are_numbers() -> None:
    """Index 1000 is newer than 999, and attempt 10 is newer than 9."""
    assert chosen(World({9: [5000], 10: [999, 1000, 99]}), 11) == uri(10, 1000)


def test_defects_are_passed_over_with_their_reasons() -> None:
    """M3, M6: what is incomplete is passed over, in order, and the reason is kept word for word."""
    world = World({1: [0, 1, 2]}, defects={uri(1, 2): "x is missing", uri(1, 1): "it is quarantined: no"})
    choice = select(2, world)
    assert choice.reference is not None
    assert choice.reference.index == 0
    assert [(p.uri, p.reason) for p in choice.passed_over] == [
        (uri(1, 2), "x is missing"),
        (uri(1, 1), "it is quarantined: no"),
    ]
    assert "2 checkpoints passed over" in choice.why


def test_attempt_without_commit_passes_on_its_source() -> None:
    """M11: an attempt preempted before its first own checkpoint loses nothing."""
    world = World({1: [0, 1], 2: [], 3: []}, sources={2: uri(1, 1), 3: uri(1, 1)})
    assert chosen(world, 4) == uri(1, 1)


def test_source_outside_the_lineage_is_passed_on() -> None:
    """M11 holds for a warm start, too."""
    world = World({1: []}, sources={1: "gs://other/x"}, elsewhere={"gs://other/x"})
    assert chosen(world, 2) == "gs://other/x"


def test_zombie_commit_does_not_replace_the_chain() -> None:
    """A commit of an old attempt, made after a newer one began, changes nothing."""
    assert chosen(World({1: [0, 1, 9], 2: [2]}), 3) == uri(2, 2)
    assert chosen(World({1: [0, 1, 9], 2: []}, sources={2: uri(1, 1)}), 3) == uri(1, 1)


def test_everything_broken_is_a_fresh_start_that_says_so() -> None:
    """M8: nothing restorable at all is a fresh start, with each reason."""
    world = World({1: [0], 2: [1]}, defects={uri(1, 0): "a", uri(2, 1): "b"})
    choice = select(3, world)
    assert choice.reference is None
    assert [p.reason for p in choice.passed_over] == ["b", "a"]
    assert "none of them usable" in choice.why


def test_fallback_comes_last() -> None:
    """The offered checkpoint counts only when the lineage itself has none."""
    world = World({1: [0]}, elsewhere={"gs://other/x"})
    assert chosen(world, 2, fallback="gs://other/x") == uri(1, 0)
    assert chosen(world, 1, fallback="gs://other/x") == "gs://other/x"


def test_failure_to_look_is_not_nothing_there() -> None:
    """M5: an error while looking is raised, it never turns into a fresh start."""

    class Blind(World):
        def checkpoints(self, attempt: int) -> Sequence[tuple[int, str]]:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        select(2, Blind({1: [0]}))


class Histories(RuleBasedStateMachine):
    """Random histories of one training: attempts, commits, deaths, zombies, quarantines."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.next_index = 0
        # What each attempt must continue: the newest good checkpoint of the chain when it began.
        self.chain: list[tuple[int, int]] = []
        self.current = 0

    @rule(records=st.booleans())
    def begin(self, records: bool) -> None:
        """The next attempt starts; it may die before it records what it restored."""
        self.current += 1
        source = chosen(self.world, self.current)
        self.world.commits[self.current] = []
        if records and source:
            self.world.sources[self.current] = source

    @precondition(lambda self: self.current)
    @rule()
    def commit(self) -> None:
        """The running attempt commits."""
        self.world.commits[self.current].append(self.next_index)
        self.chain.append((self.current, self.next_index))
        self.next_index += 1

    @precondition(lambda self: self.current > 1 and self.world.commits[self.current])
    @rule(data=st.data())
    def zombie(self, data: st.DataObject) -> None:
        """An older attempt commits although a newer one has already committed."""
        attempt = data.draw(st.integers(1, self.current - 1))
        self.world.commits[attempt].append(self.next_index + 100)

    @precondition(lambda self: self.chain)
    @rule(data=st.data())
    def spoil(self, data: st.DataObject) -> None:
        """A checkpoint of the chain is quarantined or loses a file."""
        attempt, index = data.draw(st.sampled_from(self.chain))
        self.world.defects[uri(attempt, index)] = "spoilt"
        self.chain.remove((attempt, index))

    @invariant()
    def newest_of_the_chain(self) -> None:
        """The newest good checkpoint of the newest attempt that has one is chosen, from any node."""
        following = self.current + 1
        first, second = select(following, self.world), select(following, self.world)
        assert first == second
        own = [pair for pair in self.chain if pair[0] == self.current]
        if own:
            assert first.reference is not None
            assert first.reference.uri == uri(*max(own))
        elif self.chain:
            assert first.reference is not None
            assert first.reference.uri not in self.world.defects


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


@given(st.lists(st.sampled_from(["commit", "die", "die silently"]), max_size=40))
def test_chain_never_goes_backwards(events: list[str]) -> None:
    """However attempts commit and die, each starts at the highest step that was ever committed."""
    world, attempt, index, best = World(), 1, 0, -1
    world.commits[1] = []
    for event in events:
        if event == "commit":
            world.commits[attempt].append(index)
            best, index = index, index + 1
            continue
        attempt += 1
        reference = select(attempt, world).reference
        assert (reference.index if reference else -1) == best
        world.commits[attempt] = []
        if event == "die" and reference:
            world.sources[attempt] = reference.uri
