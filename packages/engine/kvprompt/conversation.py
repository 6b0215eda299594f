"""A request in no dialect: what the renderer needs, what the sampler was asked for, and nothing of the wire it came by."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .markers import THINK_MAX_CONTEXT

SYSTEM_ROLES = frozenset({"system", "developer"})
RESULT_ROLES = frozenset({"tool", "function"})
USER_ROLES = RESULT_ROLES | {"user"}


class Dialect(StrEnum):
    """The protocol a request came in."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


class Thinking(StrEnum):
    """How much the model is to think before it answers."""

    OFF = "none"
    HIGH = "high"
    MAX = "max"

    def within(self, context: int) -> Thinking:
        """What the wish comes to in a context of so many tokens."""
        return Thinking.HIGH if self is Thinking.MAX and context < THINK_MAX_CONTEXT else self


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is the client's own text, or, when it comes from the model, compact JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the transcript; `result_ids` name the calls that it answers."""

    role: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    result_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """How a tool that the prompt calls by one name is called on the wire, and of which kind it is there."""

    name: str
    namespace: str = ""
    kind: str = "function"


@dataclass(frozen=True, slots=True)
class Tools:
    """`schemas` is one line per tool, as the client wrote it; `by_name` leads from the prompt's name back to the wire's."""

    schemas: str = ""
    by_name: dict[str, Tool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the client asked of the sampler; None where it said nothing. `seed` 0 means any."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request. `tools` is empty when the client forbade their use; `thinking` is a wish that the context may bound."""

    dialect: Dialect
    model: str
    messages: tuple[Message, ...]
    tools: Tools = Tools()
    thinking: Thinking = Thinking.HIGH
    sampling: Sampling = Sampling()
    stream: bool = False
    include_usage: bool = False
    shows_reasoning: bool = True

    @property
    def tool_context(self) -> bool:
        """Whether tools play a part, which is when reasoning of earlier turns stays in the prompt."""
        return bool(self.tools.schemas) or any(
            message.role in RESULT_ROLES or (message.role == "assistant" and message.calls) for message in self.messages
        )

    @property
    def orphans(self) -> tuple[str, ...]:
        """Ids of results whose call no earlier message of this request makes: the client sent a mere continuation.

        In chat there is no such thing; what it sends is the whole history.
        """
        if self.dialect is Dialect.CHAT:
            return ()
        declared: set[str] = set()
        orphans: list[str] = []
        for message in self.messages:
            orphans += [id for id in message.result_ids if id not in declared]
            declared.update(call.id for call in message.calls)
        return tuple(orphans)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model said, as the client is shown it. `block` is the sampled tool markup with the space before it."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    block: bytes = b""
    faults: tuple[str, ...] = ()
