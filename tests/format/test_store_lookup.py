"""Finding what a prompt can start from: longest first, every candidate with its verdict, and only the winner is opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvformat.prefix import text_key
from store_kit import (
    CTX,
    IDENTITY,
    NOW,
    SHAPE,
    count_opens,
    header_of,
    open_store,
    plant,
    restore,
    restored,
    said,
    stored,
    verdicts,
)

PROMPT = said("a", 300)


# ---- verdicts


def test_candidates_come_longest_first_and_nobody_else_comes(tmp_path: Path) -> None:
    for tokens in (130, 20, 200, 301):
        plant(tmp_path, "a", tokens)
    plant(tmp_path, "b", 200)
    assert [match.tokens for match in open_store(tmp_path).candidates(PROMPT)] == [200, 130, 20]


def test_the_whole_prompt_is_a_prefix_of_itself(tmp_path: Path) -> None:
    plant(tmp_path, "a", 300)
    assert restored(open_store(tmp_path), PROMPT) == 300


@pytest.mark.parametrize("generation", [0, 2])
def test_both_generations_are_read_to_the_same_state(tmp_path: Path, generation: int) -> None:
    path = plant(tmp_path, "a", 130, generation=generation)
    assert header_of(path).payload_abi == generation
    found = restore(open_store(tmp_path), PROMPT)
    assert found
    state = found[1]
    assert (
        np.frombuffer(path.read_bytes(), np.uint32, 130, 52 + len(said("a", 130)) + 52).tolist()
        == state.tokens.tolist()
    )


def test_the_starts_of_texts_come_from_our_own_files_the_one_used_last_first(tmp_path: Path) -> None:
    for used, name in enumerate("abc"):
        plant(tmp_path, name, 20, last_used=int(NOW) + used)
    plant(tmp_path, "d", 20, last_used=int(NOW) + 9, model_id=1)  # another model's
    plant(tmp_path, "e", 20, last_used=int(NOW) + 9).rename(tmp_path / "sysprompt.kv")
    opens = open_store(tmp_path).text_starts(7)
    path, start = next(opens)
    assert start == said("c", 20)[:7]
    path.unlink()
    (tmp_path / f"{text_key(said('b', 20))}.kv").unlink()  # vanishes meanwhile
    assert [start for _, start in opens] == [said("a", 20)[:7]]
    assert [start for _, start in open_store(tmp_path).text_starts(10**6)] == [said("a", 20)]


def test_a_file_below_the_minimum_says_so(tmp_path: Path) -> None:
    plant(tmp_path, "a", 20)
    assert verdicts(open_store(tmp_path, min_tokens=21), PROMPT) == {20: "below 21 tokens"}
    assert verdicts(open_store(tmp_path, min_tokens=20), PROMPT) == {20: "usable"}


def test_a_larger_context_is_accepted_when_the_tokens_fit(tmp_path: Path) -> None:
    plant(tmp_path, "a", 130)
    assert verdicts(open_store(tmp_path, ctx=130), PROMPT) == {130: "ctx: 130 tokens do not fit into 130"}
    assert restored(open_store(tmp_path, ctx=130), PROMPT) == 0
    assert CTX > 131
    assert restored(open_store(tmp_path, ctx=131), PROMPT) == 130


def test_another_quant_is_rejected_only_on_request(tmp_path: Path) -> None:
    plant(tmp_path, "a", 130, quant_bits=4)
    assert restored(open_store(tmp_path), PROMPT) == 130
    picky = open_store(tmp_path, replace(IDENTITY, reject_other_quant=True))
    assert verdicts(picky, PROMPT) == {130: "quant 4"}


def test_another_model_is_never_ours(tmp_path: Path) -> None:
    plant(tmp_path, "a", 130, model_id=1)
    assert verdicts(open_store(tmp_path), PROMPT) == {130: "model id 1"}


def test_weights_are_told_apart_where_both_are_known(tmp_path: Path) -> None:
    mine, other, unknown = (replace(IDENTITY, fingerprint=f) for f in ("aa11", "bb22", ""))
    stored(open_store(tmp_path, mine), "a", 130)
    assert verdicts(open_store(tmp_path, mine), PROMPT) == {130: "usable"}
    assert verdicts(open_store(tmp_path, other), PROMPT) == {130: "other weights"}
    assert verdicts(open_store(tmp_path, unknown), PROMPT) == {130: "usable"}
    plant(tmp_path, "b", 130)  # as ds4 writes it: nobody knows whose weights
    assert restored(open_store(tmp_path, other), said("b", 200)) == 130


def test_a_file_of_other_layers_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    plant(tmp_path, "a", 130, replace(SHAPE, ratios=(0, 4, 4)))
    plant(tmp_path, "a", 140, replace(SHAPE, head_dim=5))
    plant(tmp_path, "a", 20)
    store = open_store(tmp_path)
    assert restored(store, PROMPT) == 20
    assert [v.split(":")[0] for v in verdicts(store, PROMPT).values()] == ["known bad", "known bad", "usable"]


def test_an_empty_key_matches_nothing(tmp_path: Path) -> None:
    path = plant(tmp_path, "a", 130)
    data = path.read_bytes()
    text = len(said("a", 130))
    empty = data[:48] + bytes(4) + data[52 + text :]
    (tmp_path / "da39a3ee5e6b4b0d3255bfef95601890afd80709.kv").write_bytes(empty)
    path.unlink()
    assert verdicts(open_store(tmp_path), PROMPT) == {}


def test_an_upper_case_name_is_the_same_key(tmp_path: Path) -> None:
    path = plant(tmp_path, "a", 130)
    path.rename(path.with_name(path.name[:40].upper() + ".kv"))
    assert restored(open_store(tmp_path), PROMPT) == 130


# ---- what it costs


def test_a_warm_lookup_opens_only_the_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tokens in range(10, 60):
        plant(tmp_path, "a", tokens)
    store = open_store(tmp_path)
    list(store.candidates(PROMPT))
    opened = count_opens(monkeypatch, tmp_path)
    assert restored(store, PROMPT) == 59
    assert opened == {f"{next(store.candidates(PROMPT)).path.name}": 1}


def test_a_new_file_costs_one_open_and_the_others_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tokens in range(10, 60):
        plant(tmp_path, "a", tokens)
    store = open_store(tmp_path)
    list(store.candidates(PROMPT))
    path = plant(tmp_path, "a", 70)
    opened = count_opens(monkeypatch, tmp_path)
    assert next(store.candidates(PROMPT)).tokens == 70
    assert opened == {path.name: 1}


# ---- the nearest miss


def test_the_nearest_miss_names_the_first_differing_byte_with_its_surroundings(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    stored(store, "b", 50)
    path = stored(store, "a", 200)
    text = said("a", 200)
    prompt = text[:900] + b"X" + text[901:] + b" and more"
    assert verdicts(store, prompt) == {}
    miss = store.nearest_miss(prompt)
    assert miss is not None
    assert (miss.path, miss.tokens, miss.byte) == (path, 200, 900)
    assert (miss.in_file, miss.in_prompt) == (text[880:920], prompt[880:920])


def test_a_prompt_that_ends_inside_a_text_differs_where_it_ends(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    stored(store, "a", 200)
    assert verdicts(store, said("a", 100)) == {}
    miss = store.nearest_miss(said("a", 100))
    assert miss is not None and miss.byte == len(said("a", 100))


def test_an_empty_directory_explains_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert verdicts(store, PROMPT) == {}
    assert store.nearest_miss(PROMPT) is None
