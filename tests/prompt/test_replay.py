"""The memory of sampled blocks: one copy per block, bounds that hold, oldest use out."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprompt.conversation import ToolCall
from kvprompt.markers import DSML, SPELLINGS
from kvprompt.replay import Recall, Source, ToolMemory


def calls(ids: str) -> list[ToolCall]:
    return [ToolCall(id, "f", "{}") for id in ids]


def test_a_message_replays_only_if_all_its_calls_map_to_one_block():
    memory = ToolMemory()
    memory.remember("ab", b"one")
    memory.remember("c", b"two")
    assert memory.recall(calls("ab")) == Recall(b"one", Source.RAM)
    assert memory.recall(calls("ba")).block == memory.recall(calls("b")).block == b"one"
    assert memory.recall(calls("ac")) == Recall(None)
    assert memory.recall(calls("axy")) == Recall(None, missing_ids=2)


def test_ram_outranks_disk_and_another_block_replaces():
    memory = ToolMemory()
    memory.remember("a", b"one", Source.DISK)
    assert memory.recall(calls("a")).source is Source.DISK
    memory.remember("a", b"one", Source.RAM)
    memory.remember("a", b"one", Source.DISK)
    assert memory.recall(calls("a")).source is Source.RAM
    memory.remember("a", b"two", Source.DISK)
    assert memory.recall(calls("a")) == Recall(b"two", Source.DISK)
    assert memory.nbytes == len(b"two") + 1


@pytest.mark.parametrize("id", ["", "x" * 257, "è" * 129])
def test_impossible_ids_are_not_remembered(id: str):
    memory = ToolMemory()
    memory.remember([id], b"one")
    memory.remember(["fine"], b"")
    assert len(memory) == memory.nbytes == 0


@given(
    st.lists(
        st.tuples(st.sampled_from("rl"), st.text("abcdefgh", min_size=1, max_size=3), st.sampled_from((b"1", b"22")))
    )
)
def test_bounds_and_order_of_use(steps: list[tuple[str, str, bytes]]):
    """Against a plain model, with room for four ids."""
    memory, model = ToolMemory(max_ids=4), OrderedDict()
    for step, ids, block in steps:
        if step == "l":
            for id in ids:
                if id in model:
                    model.move_to_end(id)
            memory.recall(calls(ids))
            continue
        for id in ids:
            model[id] = block
            model.move_to_end(id)
        while len(model) > 4:
            model.popitem(last=False)
        memory.remember(ids, block)
    assert len(memory) == len(model)
    assert memory.nbytes == len(model) + sum(map(len, set(model.values())))
    for id, block in list(model.items()):
        assert memory.recall(calls(id)).block == block


def test_bytes_are_bounded_too():
    memory = ToolMemory(max_bytes=100)
    memory.remember("ab", b"x" * 60)
    assert memory.nbytes == 62
    memory.remember("c", b"y" * 60)
    assert (len(memory), memory.nbytes) == (1, 61)
    memory.remember("d", b"z" * 200)
    assert (len(memory), memory.nbytes) == (0, 0)


@pytest.mark.parametrize("space", ["", "\n\n", " \n\n\n"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_a_checkpoint_should_carry(spelling: str, space: str):
    block = f"{space}<{spelling}tool_calls>x</{spelling}tool_calls>".encode()
    memory = ToolMemory()
    memory.remember(("a", "b"), block)
    memory.remember(("c",), b"<tool_calls>elsewhere</tool_calls>")
    text = b"Hi." + block + b"<tool_calls>unknown</tool_calls>" + f"<{DSML}tool_calls>open".encode()
    assert list(memory.bindings_in(text)) == [("a", block), ("b", block)]
