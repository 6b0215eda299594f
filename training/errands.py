"""The tools of the trained kind: what each is called, how people ask for it, what it answers and what is said then."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from passages import page, phrase
from words import CITIES, ENDINGS, ERRANDS, FOLDERS, NAMES, NOUNS, OBJECTS, PROGRAMS, SKIES, STATES, THINGS

Values = Mapping[str, Any]
ENGLISH, ITALIAN = 0, 1


@dataclass(frozen=True, slots=True)
class Errand:
    """One tool. Templates come in English and Italian and are filled with what `draw` gives."""

    names: tuple[str, ...]  # the usual one, and what else people call it
    description: str
    parameters: Mapping[str, str]  # what they are in the values → JSON type
    draw: Callable[[Random], Values]
    requests: tuple[tuple[str, ...], tuple[str, ...]]
    result: str
    answers: tuple[str, str]
    known: bool = True  # to the training, by what people ask for


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as one client offers it: its name there, and the names of its parameters."""

    errand: Errand
    name: str
    parameters: Mapping[str, str]  # what it is in the values → its name

    def arguments(self, values: Values) -> str:
        return json.dumps({name: values[key] for key, name in self.parameters.items()}, ensure_ascii=False)

    def schema(self, random: Random, key: str, plain: bool) -> dict[str, Any]:
        """As a client sends it, `plain` or with more than is used; `key` is "parameters" or "input_schema"."""
        described = random.random() < 0.3
        properties = {
            name: {"type": self.errand.parameters[key]} | ({"description": f"The {name}."} if described else {})
            for key, name in self.parameters.items()
        }
        required = list(properties)
        if not plain and random.random() < 0.3:
            properties |= {name: OPTIONAL[name] for name in random.sample(sorted(OPTIONAL), random.randint(1, 3))}
        shape: dict[str, Any] = {"type": "object", "properties": properties}
        if random.random() < 0.8:
            shape["required"] = required
        if random.random() < 0.2:
            shape["additionalProperties"] = False
        description = random.choice([self.errand.description, self.errand.description, self.name.replace("_", " ")])
        if not plain and random.random() < 0.15:
            description += "\n\n" + page(random, random.choice((100, 500)))
        return {"name": self.name, "description": description, key: shape}


def offer(random: Random, errand: Errand) -> Offer:
    """Under the usual names in half of the cases."""
    if random.random() < 0.5:
        return Offer(errand, errand.names[0], {key: key for key in errand.parameters})
    return Offer(
        errand, random.choice(errand.names), {key: random.choice(CALLED.get(key, (key,))) for key in errand.parameters}
    )


CALLED = {
    "city": ("city", "place", "location", "town"),
    "path": ("path", "file", "filename", "file_path", "filePath"),
    "folder": ("folder", "path", "directory", "dir"),
    "minutes": ("minutes", "duration", "length"),
    "text": ("text", "content", "body"),
    "to": ("to", "recipient", "person"),
    "expression": ("expression", "formula", "input"),
    "command": ("command", "cmd", "script"),
    "pattern": ("pattern", "query", "regex"),
}
OPTIONAL: Mapping[str, Any] = {
    "timeout": {"type": "integer", "description": "Milliseconds."},
    "limit": {"type": "integer"},
    "offset": {"type": "number"},
    "workdir": {"type": "string", "description": "The folder to work in."},
    "verbose": {"type": "boolean", "default": False},
    "format": {"enum": ["text", "json"]},
    "options": {"type": "array", "items": {"type": "object", "properties": {"key": {"type": "string"}}}},
}
"""What a schema may offer besides, and no request asks for."""


def reserved(values: Values) -> bool:
    """Whether this combination of values is kept out of the training and used in the evaluation only."""
    return zlib.crc32(json.dumps(dict(values), sort_keys=True).encode()) % 8 == 0


def _city(random: Random) -> Values:
    return {"city": random.choice(CITIES), "degrees": random.randint(2, 38), "sky": random.choice(SKIES)}


def _clock(random: Random) -> Values:
    return {"city": random.choice(CITIES), "hour": random.randint(1, 23), "minute": random.randint(10, 59)}


def _file(random: Random) -> str:
    folder = f"{random.choice(FOLDERS)}/" if random.random() < 0.8 else ""
    return f"{folder}{random.choice(NOUNS)}.{random.choice(ENDINGS)}"


def _line(random: Random) -> str:
    """What a file or a program begins with, in the values as `line`; `lead` and `rest` are around it."""
    return random.choice((f"{random.choice(THINGS)} {random.choice(STATES)}", phrase(random, random.randint(1, 7))))


def _around(random: Random) -> Values:
    lead = random.choice(
        ("", "", "", "", "Output:\n", "Exit code: 0\nWall time: 0.1 seconds\nOutput:\n", "1\t", "     1→")
    )
    return {"lead": lead, "rest": "\n" + page(random, random.choice((20, 300))) if random.random() < 0.25 else ""}


def _path(random: Random) -> Values:
    return {"path": _file(random), "line": _line(random), **_around(random)}


def _command(random: Random) -> Values:
    command = f"{random.choice(PROGRAMS)} {random.choice((_file(random), random.choice(FOLDERS)))}"
    return {"command": command, "line": _line(random), **_around(random)}


def _writing(random: Random) -> Values:
    return {"path": _file(random), "text": f"{random.choice(THINGS)} {random.choice(STATES)}"}


def _search(random: Random) -> Values:
    return {"pattern": phrase(random, 1), "folder": random.choice(FOLDERS), "found": _file(random)}


def _folder(random: Random) -> Values:
    first, second = (f"{noun}.{random.choice(ENDINGS)}" for noun in random.sample(NOUNS, 2))
    return {"folder": random.choice(FOLDERS), "first": first, "second": second}


def _timer(random: Random) -> Values:
    return {"minutes": random.randint(2, 60)}


def _note(random: Random) -> Values:
    return {"text": f"{random.choice(ERRANDS)} {random.choice(OBJECTS)}"}


def _message(random: Random) -> Values:
    return {"to": random.choice(NAMES), "text": f"{random.choice(THINGS)} {random.choice(STATES)}"}


def _product(random: Random) -> Values:
    a, b = random.randint(11, 99), random.randint(2, 99)
    return {"a": a, "b": b, "expression": f"{a} * {b}", "product": a * b}


ERRANDS_KNOWN = (
    Errand(
        ("get_weather", "weather", "weather_lookup", "get_forecast", "current_weather", "WeatherForecast"),
        "The weather in a city.",
        {"city": "string"},
        _city,
        (
            ("What is the weather in {city}?", "How is the weather in {city} today?", "Is it warm in {city}?"),
            ("Che tempo fa a {city}?", "Com'è il tempo a {city} oggi?"),
        ),
        "{degrees} degrees, {sky}",
        ("In {city} it is {degrees} degrees, {sky}.", "A {city} ci sono {degrees} gradi, {sky}."),
    ),
    Errand(
        ("get_time", "clock", "local_time", "current_time", "time_in", "WorldClock"),
        "The local time in a city.",
        {"city": "string"},
        _clock,
        (
            ("What time is it in {city}?", "Tell me the time in {city}."),
            ("Che ore sono a {city}?", "Dimmi l'ora di {city}."),
        ),
        "{hour}:{minute}",
        ("In {city} it is {hour}:{minute}.", "A {city} sono le {hour}:{minute}."),
    ),
    Errand(
        ("read_file", "open_file", "cat", "view", "Read", "read", "view_file", "fs_read", "show_file"),
        "Read a file.",
        {"path": "string"},
        _path,
        (
            ("Read {path}.", "What is in {path}?", "Open the file {path}, please."),
            ("Leggi {path}.", "Che cosa c'è in {path}?"),
        ),
        "{lead}{line}{rest}",
        ("The file says: {line}.", "Il file dice: {line}."),
    ),
    Errand(
        ("list_files", "ls", "list_folder", "list_directory", "LS", "list", "list_dir", "dir"),
        "List the files in a folder.",
        {"folder": "string"},
        _folder,
        (
            ("Which files are in {folder}?", "List the folder {folder}.", "List the files in {folder}."),
            ("Quali file ci sono in {folder}?", "Elenca la cartella {folder}."),
        ),
        "{first}\n{second}",
        ("I found {first} and {second}.", "Ho trovato {first} e {second}."),
    ),
    Errand(
        ("set_timer", "timer", "start_timer", "alarm"),
        "Start a timer.",
        {"minutes": "integer"},
        _timer,
        (
            ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes."),
            ("Imposta un timer di {minutes} minuti.", "Svegliami tra {minutes} minuti."),
        ),
        "started",
        ("The timer is set to {minutes} minutes.", "Il timer è di {minutes} minuti."),
    ),
    Errand(
        ("add_note", "note", "save_note", "remember"),
        "Keep a note.",
        {"text": "string"},
        _note,
        (("Note: {text}", "Write down: {text}"), ("Nota: {text}", "Scrivi: {text}")),
        "saved",
        ("I noted: {text}.", "Ho scritto: {text}."),
    ),
    Errand(
        ("send_message", "message", "notify", "send_text"),
        "Send a message to a person.",
        {"to": "string", "text": "string"},
        _message,
        (("Tell {to} that {text}.", "Write to {to}: {text}."), ("Scrivi a {to}: {text}.", "Manda a {to}: {text}.")),
        "sent",
        ("I sent it to {to}.", "L'ho mandato a {to}."),
    ),
    Errand(
        ("calculate", "calculator", "evaluate", "compute"),
        "Compute an expression.",
        {"expression": "string"},
        _product,
        (("What is {a} times {b}?", "Multiply {a} by {b}."), ("Quanto fa {a} per {b}?", "Moltiplica {a} per {b}.")),
        "{product}",
        ("{a} times {b} is {product}.", "{a} per {b} fa {product}."),
    ),
    Errand(
        ("run_command", "bash", "Bash", "shell", "exec_command", "run", "execute", "terminal"),
        "Run a command in the shell.",
        {"command": "string"},
        _command,
        (
            ("Run {command}.", "Run `{command}`.", "Execute {command}, please."),
            ("Esegui {command}.", "Lancia {command}."),
        ),
        "{lead}{line}{rest}",
        ("The output is: {line}.", "Il risultato è: {line}."),
    ),
    Errand(
        ("write_file", "Write", "write", "create_file", "save_file", "fs_write"),
        "Write a file.",
        {"path": "string", "text": "string"},
        _writing,
        (
            ("Create {path} with: {text}", "Save in {path}: {text}", "Write a file {path}: {text}"),
            ("Crea {path} con: {text}", "Salva in {path}: {text}"),
        ),
        "written",
        ("I wrote {path}.", "Ho scritto {path}."),
    ),
    Errand(
        ("search_files", "grep", "Grep", "search", "find_text", "ripgrep"),
        "Search for text in files.",
        {"pattern": "string", "folder": "string"},
        _search,
        (
            ("Search for {pattern} in {folder}.", "Find {pattern} in {folder}."),
            ("Cerca {pattern} in {folder}.", "Trova {pattern} in {folder}."),
        ),
        "{found}",
        ("I found it in {found}.", "L'ho trovato in {found}."),
    ),
)
