"""kvformat.eviction: golden scores and orders of the real ds4, properties, and what its users reported (CASES 39-42)."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvformat.eviction import (
    DAY,
    HOUR,
    LARGE,
    SLACK,
    VALUES,
    Candidate,
    EvictionPolicy,
    eviction_order,
    expected_savings,
    may_score,
    upstream_score,
    victims,
)
from kvformat.policy import Knobs, Reason, continued_due
from kvformat.shapes import FLASH

GOLDEN = Path(__file__).parents[1] / "golden" / "policy"
NOW = 1_700_000_000.0

policies = st.sampled_from(sorted(VALUES))


@st.composite
def directories(draw: st.DrawFn) -> list[Candidate]:
    """Up to 12 files of any size, age and role, in whole seconds before NOW."""
    candidate = st.builds(
        Candidate,
        key=st.just(""),
        tokens=st.integers(1, 200_000),
        bytes=st.integers(1, 1000),
        hits=st.integers(0, 20),
        created=st.integers(int(NOW - 90 * DAY), int(NOW)).map(float),
        last_used=st.integers(int(NOW - 30 * DAY), int(NOW)).map(float),
        reason=st.integers(0, 6),
        covered=st.booleans(),
        superseded=st.booleans(),
        pinned=st.booleans(),
    )
    return [replace(c, key=str(i)) for i, c in enumerate(draw(st.lists(candidate, max_size=12)))]


def file(
    key: str, tokens: int, *, hits: int = 0, idle: float = 0.0, reason: int = Reason.EVICT, **kw: bool
) -> Candidate:
    """A Flash checkpoint of `tokens` tokens, last used `idle` seconds before NOW."""
    return Candidate(key, tokens, 52 + FLASH.payload_bytes(tokens), hits, NOW - idle, NOW - idle, reason, **kw)


def density(c: Candidate) -> float:
    return c.tokens / c.bytes


class TestUpstream:
    @pytest.mark.parametrize(("build", "score", "rows"), [("may", may_score, 10), ("current", upstream_score, 70)])
    def test_scores_are_exact(self, build: str, score, rows: int) -> None:
        table = json.loads((GOLDEN / f"{build}.json").read_text())["score"]
        assert len(table) == rows
        for row, expected in table:
            size, reason = row.pop("file_size"), row.pop("reason", Reason.UNKNOWN)
            now = row.pop("now")
            assert score(Candidate(key="", bytes=size, reason=reason, **row), now) == expected

    @pytest.mark.parametrize(("hits", "factor"), [(0, 0.05), (1, 0.275), (3, 0.3875)])
    def test_superseded_waypoints_are_worth_5_to_50_percent(self, hits: int, factor: float) -> None:
        c = Candidate("", 100, 400_000, hits, NOW, NOW, Reason.CONTINUED, superseded=True)
        assert upstream_score(c, NOW) == may_score(c, NOW) * factor
        assert upstream_score(replace(c, reason=Reason.COLD), NOW) == 2 * may_score(c, NOW)

    def test_directory_over_budget_at_open(self) -> None:
        """The real server trimmed 14 files to 1 MiB in this order; their times are alike, so only size and role decide."""
        recorded = json.loads((GOLDEN / "evictions.json").read_text())["e3_dir_over_budget_at_open_1mb"]
        candidates = [
            Candidate(name, f["tokens"], f["bytes"], f["hits"], NOW, NOW, f["reason"])
            for name, f in recorded["files_before"].items()
        ]
        gone = victims(candidates, budget=1 << 20, incoming_bytes=0, now=NOW, policy="upstream")
        assert [c.key for c in gone] == [line.rpartition("/")[2] for line in recorded["log"] if "evicted" in line]

    def test_growing_conversation(self) -> None:
        """The real server's log at 2 MiB: each store first drops the oldest waypoint that it extends, never the cold file."""
        recorded = json.loads((GOLDEN / "evictions.json").read_text())["e1_growing_conversation_2mb"]
        codes = {"cold": Reason.COLD, "continued": Reason.CONTINUED, "shutdown": Reason.SHUTDOWN}
        files: list[Candidate] = []
        evicted: list[int] = []
        expected = [int(n) for n in re.findall(r"evicted .*?tokens=(\d+)", "\n".join(recorded["log"]))]
        stored = re.findall(r"stored tokens=(\d+) .*?reason=(\w+) .*?size=([\d.]+)", "\n".join(recorded["log"]))
        for tokens, reason, mib in stored:
            size = int(float(mib) * (1 << 20))
            waiting = [replace(f, superseded=True) for f in files]
            gone = victims(waiting, budget=2 << 20, incoming_bytes=size, now=NOW, policy="upstream")
            evicted += [c.tokens for c in gone]
            files = [f for f in files if f.tokens not in evicted]
            files.append(Candidate(tokens, int(tokens), size, 0, NOW, NOW, codes[reason]))
        assert evicted == expected == [128, 192, 256, 320, 384, 448, 512]


class TestVictims:
    @given(directories(), st.integers(0, 8000), st.integers(0, 3000), policies, st.sets(st.integers(0, 11).map(str)))
    def test_enough_and_not_more_and_never_the_protected(
        self, files: list[Candidate], budget: int, incoming: int, policy: EvictionPolicy, protected: set[str]
    ) -> None:
        gone = victims(files, budget=budget, incoming_bytes=incoming, now=NOW, policy=policy, protected=protected)
        evictable = [c for c in files if not c.pinned and c.key not in protected]
        assert all(c in evictable for c in gone)
        left = sum(c.bytes for c in files) - sum(c.bytes for c in gone) + incoming
        if left > budget:
            assert gone == [] if incoming else len(gone) == len(evictable)
            assert (
                left > budget >= 0 and sum(c.bytes for c in files) - sum(c.bytes for c in evictable) + incoming > budget
            )
        elif gone:
            last = gone[-1].bytes
            needed, for_slack = left + last > budget, left + last > budget - int(budget * SLACK)
            assert needed or (policy == "ours" and for_slack and last <= LARGE * budget)

    @given(directories(), policies)
    def test_order_is_the_values(self, files: list[Candidate], policy: EvictionPolicy) -> None:
        values = [VALUES[policy](c, NOW) for c in eviction_order(files, NOW, policy)]
        assert values == sorted(values)

    @given(directories(), policies, st.integers(-1_000_000, 1_000_000))
    def test_only_time_differences_matter(self, files: list[Candidate], policy: EvictionPolicy, shift: int) -> None:
        moved = [replace(c, created=c.created + shift, last_used=c.last_used + shift) for c in files]
        before, after = (eviction_order(f, n, policy) for f, n in ((files, NOW), (moved, NOW + shift)))
        assert [c.key for c in before] == [c.key for c in after]

    @pytest.mark.parametrize(("incoming", "gone"), [(60, []), (61, ["a"])])
    def test_an_exact_fit_deletes_nothing(self, incoming: int, gone: list[str]) -> None:
        files = [Candidate("a", 10, 40, 0, NOW, NOW, Reason.EVICT)]
        assert [c.key for c in victims(files, budget=100, incoming_bytes=incoming, now=NOW)] == gone

    def test_least_recently_used_falls_back_to_the_creation(self) -> None:
        a, b, c = file("a", 900, idle=30), file("b", 100, idle=10, hits=9), file("c", 5000, idle=20)
        assert [f.key for f in eviction_order([a, b, replace(c, last_used=0.0)], NOW, "lru")] == ["a", "c", "b"]

    def test_ties_go_by_last_use_then_length(self) -> None:
        same = [
            file(k, n, idle=i, reason=Reason.CONTINUED, covered=True)
            for k, n, i in [("a", 9, 0), ("b", 5, 0), ("c", 7, 60)]
        ]
        assert [c.key for c in eviction_order(same, NOW)] == ["c", "b", "a"]


class TestExpectedSavings:
    @given(directories(), st.integers(0, 100 * 86400))
    def test_never_grows_with_idle_time_and_never_falls_with_hits(self, files: list[Candidate], later: int) -> None:
        for c in files:
            assert expected_savings(c, NOW + later) <= expected_savings(c, NOW)
            assert expected_savings(replace(c, hits=c.hits + 1), NOW) >= expected_savings(c, NOW)

    def test_covered_zero_hit_waypoint_goes_before_a_stale_file_and_before_a_passed_turn(self) -> None:
        waypoint = file("waypoint", 40_000, reason=Reason.CONTINUED, covered=True)
        passed = file("passed", 40_000, covered=True)
        stale = file("stale", 2_000, idle=60 * DAY)
        assert eviction_order([stale, passed, waypoint], NOW)[0] == waypoint
        assert expected_savings(passed, NOW) < expected_savings(replace(passed, covered=False), NOW)

    def test_the_hit_by_which_a_conversation_moved_on_is_no_use(self) -> None:
        covered = file("x", 20_000, hits=1, covered=True)
        assert expected_savings(covered, NOW) == expected_savings(replace(covered, hits=0), NOW)
        assert expected_savings(replace(covered, hits=2), NOW) > expected_savings(covered, NOW)
        shared = replace(covered, reason=Reason.COLD)
        assert expected_savings(shared, NOW) > expected_savings(replace(shared, hits=0), NOW)

    def test_weekly_use_is_not_erased(self) -> None:
        """CASES 40: a prefix used 16 times, a week ago, against yesterday's one-shot of 1 GB."""
        weekly = file("weekly", 3_000, hits=16, idle=7 * DAY, reason=Reason.COLD, covered=True)
        giant = file("giant", 70_000, idle=20 * HOUR)
        assert eviction_order([weekly, giant], NOW)[0] == giant
        assert eviction_order([weekly, giant], NOW, "upstream")[0] == weekly

    def test_no_hits_are_no_verdict_on_a_file_that_upstream_would_have_consumed(self) -> None:
        long, short = file("long", 60_000), file("short", 1_000)
        assert expected_savings(long, NOW) / expected_savings(short, NOW) == pytest.approx(
            density(long) / density(short)
        )

    def test_a_future_time_is_now_and_an_empty_file_worthless(self) -> None:
        c = file("x", 1000, hits=3)
        assert expected_savings(replace(c, last_used=NOW + DAY), NOW) == expected_savings(c, NOW)
        assert expected_savings(replace(c, bytes=0), NOW) == 0


class TestReports:
    def test_case_39_the_file_just_written_survives_the_next_store(self) -> None:
        size = file("", 10_000).bytes
        kept: list[Candidate] = []
        for second in range(5):
            gone = victims(kept, budget=int(2.5 * size), incoming_bytes=size, now=NOW + second)
            kept = [c for c in kept if c not in gone]
            kept.append(replace(file(f"{second}", 10_000), created=NOW + second, last_used=0.0))
        assert [c.key for c in kept] == ["3", "4"]

    def test_case_40_often_used_files_survive_a_4x_budget_cut(self) -> None:
        files = crowded_directory(random.Random(40))
        assert len(files) == 702
        used = sum(c.bytes for c in files)
        often = [c for c in files if c.hits >= 4]
        assert len(often) == 62 and sum(c.bytes for c in often) < used // 4
        survivors = {c.key for c in files} - {
            c.key for c in victims(files, budget=used // 4, incoming_bytes=0, now=NOW)
        }
        assert all(c.key in survivors for c in often)
        upstream = {c.key for c in victims(files, budget=used // 4, incoming_bytes=0, now=NOW, policy="upstream")}
        assert any(c.key in upstream for c in often)

    def test_case_42_a_long_prefill_keeps_its_last_waypoint_and_the_stranger(self) -> None:
        k = Knobs(min_tokens=1, interval=16, align=0)
        kept = [Candidate("old", 50, 150, 0, NOW - DAY, 0.0, Reason.EVICT)]
        stored = 0
        for position in range(4, 61, 4):
            if continued_due(position, stored, k):
                waypoints = [replace(c, covered=c.key != "old") for c in kept]
                gone = victims(waypoints, budget=300, incoming_bytes=100 + position, now=NOW)
                kept = [c for c in kept if c.key not in {g.key for g in gone}]
                kept.append(Candidate(str(position), position, 100 + position, 0, NOW, 0.0, Reason.CONTINUED))
                stored = position
        assert [c.key for c in kept] == ["old", "48"]


def crowded_directory(rng: random.Random) -> list[Candidate]:
    """A full directory as its owner described it: giant one-shot dumps, and small prefixes used for weeks."""
    prefixes = [
        file(
            f"prefix {i}",
            rng.randint(600, 4000),
            hits=rng.randint(4, 16),
            idle=rng.uniform(0, 14) * DAY,
            reason=Reason.COLD,
            covered=True,
        )
        for i in range(62)
    ]
    dumps = [file(f"dump {i}", rng.randint(20_000, 80_000), idle=rng.uniform(0, 30) * DAY) for i in range(400)]
    waypoints = [
        file(
            f"waypoint {i}",
            rng.randint(1, 6) * 10_240,
            idle=rng.uniform(0, 30) * DAY,
            reason=Reason.CONTINUED,
            covered=rng.random() < 0.8,
        )
        for i in range(240)
    ]
    return prefixes + dumps + waypoints
