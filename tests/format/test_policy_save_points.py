"""kvformat.policy: where a session is saved. Golden rows are what the real ds4 computed (tests/golden/policy)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvformat.policy import (
    Knobs,
    Reason,
    cold_saves,
    continued_due,
    store_len,
    upstream_continued_due,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "policy"
BUILDS = ("may", "current")
USER, ASSISTANT = 627, 628

tokens = st.integers(0, 70_000)
knobs = st.builds(
    Knobs,
    min_tokens=st.integers(0, 3000),
    cold_max=st.integers(0, 60_000),
    interval=st.integers(0, 20_000),
    trim=st.integers(0, 100),
    align=st.sampled_from([0, 1, 32, 100, 2048]),
    order=st.sampled_from(["align-then-trim", "trim-then-align"]),
)


def golden(build: str, table: str) -> list[list]:
    return json.loads((GOLDEN / f"{build}.json").read_text())[table]


def upstream_knobs(words: str) -> Knobs:
    """A golden row's "0 min cold_max interval trim align"; the first word says nothing about lengths."""
    _, min_tokens, cold_max, interval, trim, align = map(int, words.split())
    return Knobs(min_tokens, cold_max, interval, trim, align, "trim-then-align")


class TestStoreLen:
    @pytest.mark.parametrize(
        ("prompt", "stored"),
        [
            (512, 512),
            (2047, 2047),
            (2048, 2016),
            (4095, 2016),
            (4096, 4064),
            (5000, 4064),
            (10239, 8160),
            (10240, 10208),
            (10500, 10208),
            (12287, 10208),
        ],
    )
    def test_default_aligns_then_trims(self, prompt: int, stored: int) -> None:
        assert store_len(prompt, Knobs()) == stored

    @pytest.mark.parametrize(
        ("align", "trim", "prompt", "stored"),
        [(0, 32, 5000, 4968), (0, 32, 540, 540), (2048, 0, 5000, 4096), (0, 0, 5000, 5000)],
    )
    def test_align_and_trim_can_be_off(self, align: int, trim: int, prompt: int, stored: int) -> None:
        assert store_len(prompt, Knobs(align=align, trim=trim)) == stored

    @pytest.mark.parametrize("build", BUILDS)
    def test_upstream_order_is_upstream(self, build: str) -> None:
        rows = golden(build, "store_len")
        assert len(rows) == 104
        assert [store_len(t, upstream_knobs(words)) for words, t, _ in rows] == [stored for *_, stored in rows]

    def test_upstream_keeps_whole_what_is_not_longer_than_minimum_and_trim(self) -> None:
        assert store_len(544, Knobs(align=0, order="trim-then-align")) == 544

    def test_upstream_aligns_last(self) -> None:
        assert store_len(10500, Knobs(order="trim-then-align")) == 10240

    def test_a_cut_to_nothing_is_no_cut(self) -> None:
        assert store_len(100, Knobs(min_tokens=0, trim=0)) == 100

    @given(tokens, knobs)
    @example(0, Knobs(min_tokens=0))
    def test_whole_or_cut_on_the_grid(self, prompt: int, k: Knobs) -> None:
        stored = store_len(prompt, k)
        assert 0 <= stored <= prompt
        if stored < prompt:
            assert stored >= k.min_tokens
            if k.align:
                assert (stored + (k.trim if k.order == "align-then-trim" else 0)) % k.align == 0

    @given(tokens, tokens, knobs)
    def test_once_cut_a_longer_prompt_never_stores_less(self, a: int, b: int, k: Knobs) -> None:
        short, long = sorted((a, b))
        if store_len(short, k) < short:
            assert store_len(long, k) >= store_len(short, k)

    @given(tokens, knobs)
    def test_at_least_the_trim_is_cut_and_less_than_apart(self, prompt: int, k: Knobs) -> None:
        stored = store_len(prompt, k)
        if stored < prompt:
            assert k.trim <= prompt - stored < k.apart + (k.align == 0)


class TestColdSaves:
    def test_nothing_below_the_minimum_and_it_is_said(self) -> None:
        plan = cold_saves(511, Knobs())
        assert plan.saves == ()
        assert [(s.tokens, s.reason, s.knob) for s in plan.skipped] == [(511, Reason.COLD, "--kv-cache-min-tokens")]

    def test_anchor_and_boundary(self) -> None:
        assert cold_saves(9000, Knobs(), anchor=3000).saves == (3000, 8160)

    def test_boundary_near_the_anchor_is_the_anchor(self) -> None:
        plan = cold_saves(5000, Knobs(), anchor=4900)
        assert plan.saves == (4900,)
        assert [s.tokens for s in plan.skipped] == [4064]

    @pytest.mark.parametrize(("anchor", "saves"), [(6080, (6080, 8160)), (6081, (6081,))])
    def test_apart_is_alignment_plus_trim(self, anchor: int, saves: tuple[int, ...]) -> None:
        assert cold_saves(9000, Knobs(), anchor=anchor).saves == saves

    def test_short_anchor_gives_way_to_the_boundary(self) -> None:
        plan = cold_saves(5000, Knobs(), anchor=300)
        assert plan.saves == (4064,)
        assert [(s.tokens, s.knob) for s in plan.skipped] == [(300, "--kv-cache-min-tokens")]

    def test_long_anchor_gives_way_to_a_boundary_below_it(self) -> None:
        assert cold_saves(30_700, Knobs(), anchor=30_500).saves == (28_640,)

    @pytest.mark.parametrize(("cached", "saves"), [(28_639, (28_640,)), (28_640, ())])
    def test_nothing_is_saved_below_what_was_restored(self, cached: int, saves: tuple[int, ...]) -> None:
        assert cold_saves(30_700, Knobs(), anchor=30_500, cached=cached).saves == saves

    @pytest.mark.parametrize(("prompt", "saves"), [(30_000, (30_000,)), (30_001, ())])
    def test_cold_max_itself_is_still_saved(self, prompt: int, saves: tuple[int, ...]) -> None:
        assert cold_saves(prompt, Knobs(align=0, trim=0)).saves == saves

    def test_case_24_hit_below_the_anchor_refreshes_it(self) -> None:
        k = Knobs(min_tokens=4, align=8, trim=2)
        assert 28 in cold_saves(40, k, anchor=28, cached=16).saves
        assert cold_saves(40, k, anchor=28, cached=28).saves == ()

    def test_case_25_the_gate_is_the_anchors_own_length(self) -> None:
        plan = cold_saves(44, Knobs(min_tokens=4, cold_max=40, align=0, trim=0), anchor=30)
        assert plan.saves == (30,)
        assert [(s.tokens, s.knob) for s in plan.skipped] == [(44, "--kv-cache-cold-max-tokens")]

    def test_case_26_short_prompts_are_cut_at_the_first_user_marker(self) -> None:
        assert cold_saves(26, Knobs(min_tokens=16), anchor=20).saves == (20,)

    def test_cold_max_zero_turns_cold_saves_off_silently(self) -> None:
        plan = cold_saves(9000, Knobs(cold_max=0), anchor=3000)
        assert (plan.saves, plan.skipped) == ((), ())

    @given(st.integers(1, 70_000), knobs, st.data())
    def test_every_point_is_saved_or_explained_or_cached(self, prompt: int, k: Knobs, data: st.DataObject) -> None:
        anchor = data.draw(st.integers(0, prompt - 1))
        cached = data.draw(st.integers(0, prompt))
        plan = cold_saves(prompt, k, anchor=anchor, cached=cached)
        assert list(plan.saves) == sorted(set(plan.saves))
        assert all(max(k.min_tokens, cached + 1) <= p <= min(k.cold_max, prompt) for p in plan.saves)
        assert all(b - a >= k.apart for a, b in zip(plan.saves, plan.saves[1:], strict=False))
        if k.cold_max and cached < max(anchor, 1):
            wanted = {store_len(prompt, k)} | ({anchor} if anchor else set())
            explained = {s.tokens for s in plan.skipped}
            assert all(p in plan.saves or p in explained or p <= cached for p in wanted)


class TestContinued:
    def test_default_step_is_10240(self) -> None:
        assert Knobs().step == 10240
        assert Knobs(align=0).step == 10000
        assert not continued_due(100_000, 0, Knobs(interval=0))

    @pytest.mark.parametrize("build", BUILDS)
    def test_upstream_rule_is_upstream(self, build: str) -> None:
        rows = golden(build, "continued_target")
        assert len(rows) == 312
        for words, length, marker, target in rows:
            assert upstream_continued_due(length, marker, upstream_knobs(words)) == (target != 0)

    def test_ours_stores_where_upstream_does_and_past_frontiers_that_it_misses(self) -> None:
        rows = golden("current", "continued_target")
        due = [continued_due(length, marker, upstream_knobs(words)) for words, length, marker, _ in rows]
        assert all(ours for ours, (*_, target) in zip(due, rows, strict=True) if target)
        only_ours = [(r[1], r[2]) for ours, r in zip(due, rows, strict=True) if ours and not r[3]]
        assert (2079, 0) in only_ours
        assert all(length != marker for length, marker in only_ours)

    @pytest.mark.parametrize(("length", "due"), [(511, False), (512, True)])
    def test_nothing_below_the_minimum(self, length: int, due: bool) -> None:
        assert continued_due(length, 0, Knobs(interval=256, align=0)) == due

    def test_case_27_odd_start_and_chunk(self) -> None:
        k = Knobs(min_tokens=1, interval=16, align=0)
        assert run(7, 4, 100, k) == [19, 35, 51, 67, 83, 99]

    def test_not_repeated_where_another_reason_just_stored(self) -> None:
        assert continued_due(10_300, 9_000, Knobs())
        assert not continued_due(10_300, 10_250, Knobs())

    @given(st.integers(0, 500), st.integers(1, 60), st.integers(1, 64), st.integers(0, 300))
    def test_a_save_within_one_chunk_past_each_frontier(self, start: int, chunk: int, step: int, more: int) -> None:
        end = start + more
        saves = run(start, chunk, end, Knobs(min_tokens=0, interval=step, align=0))
        reached = start + (end - start) // chunk * chunk
        for frontier in range((start // step + 1) * step, reached + 1, step):
            assert any(frontier <= s < frontier + chunk for s in saves)
        assert len(saves) <= end // step - start // step


def run(start: int, chunk: int, end: int, k: Knobs) -> list[int]:
    """The continued saves of a session restored at `start` that moves in whole chunks."""
    stored, saves = start, []
    for position in range(start + chunk, end + 1, chunk):
        if continued_due(position, stored, k):
            saves.append(position)
            stored = position
    return saves
