"""Text around what matters: pages of sentences, lists, code and JSON that mean nothing. Real prompts are full of it."""

from __future__ import annotations

import json
from random import Random

from words import listed

NOUNS = listed(
    "user file task tool model server cache state prompt token answer request response session command result error "
    "directory branch change test function module class method variable value string number list table record field key "
    "name path folder project repository release version option setting default limit memory disk page line word text "
    "sentence question message channel network client agent process thread event signal timer clock report summary plan "
    "step goal reason example rule policy permission approval sandbox shell environment system platform window screen "
    "image document section chapter title comment review issue patch commit author team customer order price market "
    "harbour bridge river garden tower village street library museum boat train letter picture morning evening winter"
)
VERBS = listed(
    "reads writes keeps opens closes returns checks updates removes creates sends receives finds shows calls uses needs "
    "starts stops runs waits follows replaces stores loads saves prints lists counts compares explains describes accepts "
    "refuses holds moves copies changes contains begins ends joins splits reports measures expects supports ignores"
)
ADJECTIVES = listed(
    "new old long short small large clear open local remote current previous final first last empty full simple complex "
    "safe exact partial optional required available background relevant specific general quick slow quiet early late"
)
ADVERBS = listed("always never often only usually first then again directly carefully once here there before after")
LINKS = listed(
    "in the,on the,for the,with the,from the,before the,after the,to the,without the,of the,and the,or the", ","
)
OPENINGS = listed(
    "The,A,Every,This,Your,Each,When the,If the,Do not use the,Always check the,Prefer the,Make sure that the,Note that the",
    ",",
)
SIGNS = listed("name status type enabled count path mode id value level size output input format timeout label")


def phrase(random: Random, words: int) -> str:
    """Words one after the other, of no particular sense."""
    return " ".join(random.choice(random.choice((NOUNS, NOUNS, ADJECTIVES, ADVERBS))) for _ in range(words))


def sentence(random: Random) -> str:
    words = [random.choice(OPENINGS)]
    if random.random() < 0.6:
        words.append(random.choice(ADJECTIVES))
    words += [random.choice(NOUNS), random.choice(VERBS)]
    for _ in range(random.randint(1, 3)):
        words += [random.choice(LINKS), random.choice(NOUNS)]
    if random.random() < 0.3:
        words.append(random.choice(ADVERBS))
    return " ".join(words) + random.choice((".", ".", ".", ".", ":", "!", "?"))


def page(random: Random, characters: int) -> str:
    """Lines of all kinds, at least so many characters."""
    lines: list[str] = []
    while characters > 0:
        lines.append(random.choice(_KINDS)(random))
        characters -= len(lines[-1]) + 1
    return "\n".join(lines)


def _prose(random: Random) -> str:
    return " ".join(sentence(random) for _ in range(random.randint(1, 5)))


def _heading(random: Random) -> str:
    return f"\n{'#' * random.randint(1, 3)} {phrase(random, random.randint(1, 3)).capitalize()}\n"


def _item(random: Random) -> str:
    mark = random.choice(("- ", "* ", f"{random.randint(1, 9)}. ", "  - "))
    return mark + random.choice((sentence(random), f"`{_name(random)}`: {phrase(random, 4)}", phrase(random, 3)))


def _code(random: Random) -> str:
    name, other, number = _name(random), _name(random), random.randint(0, 4096)
    return random.choice(
        (
            f"    {name} = {other}({random.choice(SIGNS)}={number})",
            f"def {name}({random.choice(SIGNS)}):\n    return {other}",
            f"$ {random.choice(NOUNS)} --{random.choice(SIGNS)} {number} {_path(random)}",
            f"if ({name} < {number}) {{ {other}(); }}",
            f"{number}\t{_path(random)}",
        )
    )


def _json(random: Random) -> str:
    values = (True, False, None, random.randint(0, 99), phrase(random, 2), [random.choice(NOUNS)])
    return json.dumps({random.choice(SIGNS): random.choice(values) for _ in range(random.randint(1, 4))})


def _tagged(random: Random) -> str:
    tag = random.choice(NOUNS) + random.choice(("", "_context", "-reminder", "_info"))
    return f"<{tag}>\n{_prose(random)}\n</{tag}>"


def _name(random: Random) -> str:
    return random.choice(("_", "", ".")).join((random.choice(NOUNS), random.choice(NOUNS)))


def _path(random: Random) -> str:
    return f"/{random.choice(NOUNS)}/{random.choice(NOUNS)}.{random.choice(SIGNS)}"


_KINDS = (_prose, _prose, _prose, _item, _item, _heading, _code, _json, _tagged)
