"""kvformat.governor: which saves are worth their bytes (CASES 44), and a ledger under a fake clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvformat.governor import HOUR, Ledger, Limits, Save, needed_gain, refusal
from kvformat.policy import Knobs, Reason, continued_due
from kvformat.shapes import FLASH

saves = st.builds(
    Save,
    reason=st.sampled_from(Reason),
    tokens=st.integers(1, 300_000),
    bytes=st.integers(1, 10**9),
    on_disk=st.integers(0, 300_000),
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TestRefusal:
    @pytest.mark.parametrize(
        ("reason", "tokens", "on_disk", "admitted"),
        [
            (Reason.EVICT, 1000, 489, False),
            (Reason.EVICT, 1001, 489, True),
            (Reason.SHUTDOWN, 101_999, 100_000, False),
            (Reason.EVICT, 102_500, 100_000, True),
            (Reason.CONTINUED, 10_240, 0, True),
            (Reason.CONTINUED, 20_480, 10_240, False),
            (Reason.CONTINUED, 40_960, 10_240, True),
            (Reason.COLD, 28, 16, True),
            (Reason.COLD, 28, 28, False),
        ],
    )
    def test_a_save_has_to_add_enough(self, reason: Reason, tokens: int, on_disk: int, admitted: bool) -> None:
        refused = refusal(Save(reason, tokens, 1, on_disk), Limits())
        assert (refused is None) == admitted
        if refused:
            assert (refused.tokens, refused.reason) == (tokens, reason)
            assert refused.knob == "--kv-cache-min-gain-tokens" and str(on_disk) in refused.because

    @given(saves)
    def test_min_gain_zero_writes_every_save(self, save: Save) -> None:
        if save.tokens >= save.on_disk:
            assert refusal(save, Limits(min_gain=0)) is None

    @given(saves, saves)
    def test_more_on_disk_never_asks_for_less(self, a: Save, b: Save) -> None:
        a, b = sorted((a, Save(a.reason, b.tokens, b.bytes, b.on_disk)), key=lambda s: s.on_disk)
        assert needed_gain(a, Limits()) <= needed_gain(b, Limits())

    @pytest.mark.parametrize(("written", "admitted"), [(0, True), (60, True), (61, False)])
    def test_bytes_per_hour_holds_for_every_reason(self, written: int, admitted: bool) -> None:
        for reason in Reason:
            refused = refusal(Save(reason, 5000, 40), Limits(bytes_per_hour=100), written)
            assert (refused is None) == admitted
            assert admitted or refused.knob == "--kv-write-limit"


class TestLedger:
    def test_counts_by_reason_and_forgets_after_an_hour(self) -> None:
        clock = Clock()
        ledger, limits = Ledger(clock), Limits(bytes_per_hour=100)
        ledger.wrote(Save(Reason.COLD, 5000, 70))
        clock.now = HOUR / 2
        assert ledger.admit(Save(Reason.EVICT, 5000, 40), limits) is not None
        assert ledger.admit(Save(Reason.EVICT, 5000, 30), limits) is None
        ledger.wrote(Save(Reason.EVICT, 5000, 30))
        assert ledger.last_hour() == 100
        clock.now = HOUR
        assert ledger.last_hour() == 30
        assert ledger.admit(Save(Reason.EVICT, 9000, 70), limits) is None
        assert ledger.written == {Reason.COLD: 70, Reason.EVICT: 30}
        assert ledger.skipped == {Reason.EVICT: 1}

    @given(st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 60)), max_size=30))
    def test_no_window_of_an_hour_passes_the_limit(self, steps: list[tuple[int, int]]) -> None:
        clock, limits = Clock(), Limits(bytes_per_hour=100)
        ledger, log = Ledger(clock), []
        for wait, size in steps:
            clock.now += wait
            save = Save(Reason.EVICT, 5000, size)
            if ledger.admit(save, limits) is None:
                ledger.wrote(save)
                log.append((clock.now, size))
        for start, _ in log:
            assert sum(size for at, size in log if start <= at < start + HOUR) <= 100
        assert len(log) + ledger.skipped.total() == len(steps)


class TestCase44:
    def test_a_session_of_ten_turns_writes_a_small_multiple_of_its_final_size(self) -> None:
        k, limits, ledger = Knobs(), Limits(), Ledger(Clock())
        length = stored = on_disk = 0
        for _ in range(10):
            for _ in range(5):
                length += 4096
                if continued_due(length, stored, k):
                    stored = length
                    save = Save(Reason.CONTINUED, length, FLASH.payload_bytes(length), on_disk)
                    if ledger.admit(save, limits) is None:
                        ledger.wrote(save)
                        on_disk = length
        ledger.wrote(Save(Reason.SHUTDOWN, length, FLASH.payload_bytes(length), on_disk))
        assert ledger.written.total() < 8 / 3 * FLASH.payload_bytes(length)
        assert ledger.written[Reason.CONTINUED] > 0
        assert ledger.skipped[Reason.CONTINUED] > 10

    @given(st.lists(st.integers(1, 30_000), min_size=1, max_size=40))
    def test_continued_files_sum_up_to_two_thirds_more_than_the_longest(self, steps: list[int]) -> None:
        length, kept = 0, [0]
        for step in steps:
            length += step
            if refusal(Save(Reason.CONTINUED, length, 1, kept[-1]), Limits()) is None:
                kept.append(length)
        assert sum(kept) <= 5 / 3 * kept[-1] + len(kept)

    def test_the_document_s_example_gets_its_continued_file(self) -> None:
        """A cold file at 4,064 tokens, then the frontier at 10,240."""
        assert refusal(Save(Reason.CONTINUED, 10_240, FLASH.payload_bytes(10_240), 4_064), Limits()) is None
