"""Tools that no training knows by name: what a user asks of them names the tool and its parameters.

Most of them are only offered, as the twenty others in an agent's list.
"""

from __future__ import annotations

from random import Random

from errands import Errand, Values
from passages import ADJECTIVES, NOUNS, SIGNS, page, phrase
from words import CITIES, NAMES, listed

ACTIONS = listed(
    "get set fetch open close create delete update list search find start stop send check build deploy merge move copy "
    "plan review render export import sync lock wait schedule resume cancel describe compare count reset publish"
)
MORE_PARAMETERS = listed(
    "target source query pattern url branch title description prompt subject script reason kind owner version priority "
    "limit offset lines seconds depth amount color region ticket symbol user_id task_id old_string new_string max_results"
)
NUMBERS = {"limit", "offset", "lines", "seconds", "depth", "amount", "count", "size", "timeout", "level", "max_results"}


def foreign(random: Random, most: int = 3) -> Errand:
    """A tool of some name with up to so many parameters."""
    name = tool_name(random)
    names = random.sample(MORE_PARAMETERS + SIGNS, random.randint(0, most))
    parameters = {_cased(random, each): "integer" if each in NUMBERS else "string" for each in names}

    def draw(random: Random) -> Values:
        return {each: _value(random, kind) for each, kind in parameters.items()} | {
            "result": phrase(random, random.randint(1, 4))
        }

    return Errand(
        (name,),
        page(random, random.choice((20, 60, 200))),
        parameters,
        draw,
        _requests(name, list(parameters)),
        "{result}",
        (f"{name} says: {{result}}.", f"{name} dice: {{result}}."),
        known=False,
    )


def tool_name(random: Random) -> str:
    words = [random.choice(ACTIONS), random.choice(NOUNS)]
    if random.random() < 0.15:
        words.insert(1, random.choice(ADJECTIVES))
    match random.choice(("snake", "snake", "camel", "capital", "kebab")):
        case "snake":
            return "_".join(words)
        case "kebab":
            return "-".join(words)
        case style:
            name = "".join(word.capitalize() for word in words)
            return name if style == "capital" else name[0].lower() + name[1:]


def _requests(name: str, parameters: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not parameters:
        return (f"Use {name}.", f"Call {name}, please."), (f"Usa {name}.", f"Chiama {name}.")
    spoken, equal = ([f"{each}{sign}{{{each}}}" for each in parameters] for sign in (" ", " = "))
    return (
        (f"Use {name} with {' and '.join(spoken)}.", f"Call {name}: {', '.join(equal)}."),
        (f"Usa {name} con {' e '.join(spoken)}.", f"Chiama {name}: {', '.join(equal)}."),
    )


def _cased(random: Random, name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest) if random.random() < 0.3 else name


def _value(random: Random, kind: str) -> str | int:
    if kind == "integer":
        return random.randint(1, 99)
    return random.choice(
        (
            random.choice(NOUNS),
            random.choice(CITIES),
            random.choice(NAMES),
            phrase(random, 2),
            f"{random.choice(NOUNS)}/{random.choice(NOUNS)}",
            f"{random.choice(NOUNS)}-{random.randint(1, 99)}",
        )
    )
