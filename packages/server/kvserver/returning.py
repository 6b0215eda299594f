"""Who comes back: what a prompt has behind the text that it shares with a live session tells a retry from another conversation.

How much would be lost by going back tells nothing: a retry may throw a long answer away, and two agents with one preamble
part early and often. What the client said does. Pure functions on rendered bytes.
"""

from __future__ import annotations

from enum import IntEnum

from kvprompt.markers import ASSISTANT, RESULT_OPEN, USER

_USER, _ASSISTANT, _RESULT = USER.encode(), ASSISTANT.encode(), RESULT_OPEN.encode()


class Return(IntEnum):
    """What a prompt is to the session whose text it begins with, the closest first."""

    CONTINUES = 0  # all that the session holds, and more
    RETRIES = 1  # the same messages, as far as both go: the answer is wanted anew
    EDITS = 2  # another last message in place of the session's last
    PARTS = 3  # another conversation, or another branch: what the session holds will be asked for again

    @property
    def same(self) -> bool:
        """Whether the session's tail is of no more use to anyone."""
        return self is not Return.PARTS


def returns_as(prompt: bytes, held: bytes, shared: int) -> Return:
    """What `prompt` is to a session that holds the text `held`; their first `shared` bytes, up to some point, are equal."""
    if shared == len(held):
        return Return.CONTINUES
    start = max(held.rfind(_USER, 0, shared), 0)  # the message in which the point lies may differ behind it
    ours, theirs = _said(held[start:]), _said(prompt[start:])
    parting = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    if parting is None:
        return Return.RETRIES
    lost = [message for message in ours[parting:] if not message.startswith(_RESULT)]
    newest = parting == len(theirs) - 1  # a client that edits has not seen an answer to it yet
    answered = 0 <= prompt.find(_ASSISTANT) < prompt.rfind(_USER)  # before that, nothing but a preamble is shared
    return Return.EDITS if newest and answered and len(lost) <= 1 else Return.PARTS


def _said(text: bytes) -> list[bytes]:
    """What the client said, message by message; the first is whatever stands before the first user marker."""
    return [turn.partition(_ASSISTANT)[0] for turn in text.split(_USER)]
