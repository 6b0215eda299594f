"""The values that dialogues are about. Most are one token each once the tokenizer has seen them, which makes copying easy."""

from __future__ import annotations


def listed(text: str, separator: str = " ") -> tuple[str, ...]:
    return tuple(text.split(separator))


NAMES = listed(
    "Anna Marco Giulia Peter Laura Paul Elena Tom Sara David Chiara Max Emma Luca Maria John Lisa Carlo "
    "Nina Leo Clara Hugo Irene Bruno Alice Oscar Rosa Felix Vera Simon"
)
CITIES = listed(
    "Rome Paris London Berlin Madrid Vienna Milan Naples Lisbon Dublin Oslo Athens Prague Warsaw Turin "
    "Venice Boston Tokyo Zurich Geneva Lyon Porto Genoa Munich Hamburg Seville Bologna Palermo Bari "
    "Chicago"
)
NOUNS = listed(
    "plan report notes budget letter recipe list draft diary index summary agenda invoice survey readme config"
)
FOLDERS = listed("docs src home data notes work mail tests images backup")
ENDINGS = listed("md txt py json csv")
PROGRAMS = listed("ls,cat,head,tail,sort,wc -l,stat,file,python,git log", ",")
DOGS = listed("Rex Luna Fido Bella Argo Milo Stella Rocky Bobby Nero Zoe Birba")
FOODS = (
    ("pizza", "pizza"),
    ("bread", "pane"),
    ("soup", "zuppa"),
    ("rice", "riso"),
    ("fish", "pesce"),
    ("cheese", "formaggio"),
    ("apples", "mele"),
    ("pasta", "pasta"),
)
DAYS = (
    ("Monday", "lunedì"),
    ("Tuesday", "martedì"),
    ("Wednesday", "mercoledì"),
    ("Thursday", "giovedì"),
    ("Friday", "venerdì"),
    ("Saturday", "sabato"),
    ("Sunday", "domenica"),
)
SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "clear")
COLOURS = (
    ("red", "rosso"),
    ("blue", "blu"),
    ("green", "verde"),
    ("yellow", "giallo"),
    ("white", "bianco"),
    ("black", "nero"),
    ("orange", "arancione"),
    ("purple", "viola"),
)
THINGS = listed(
    "the train,the meeting,the lesson,the dinner,the flight,the concert,the call,the parcel,the bus,the game",
    ",",
)
STATES = listed(
    "is late,is ready,is over,is tomorrow,starts at nine,was moved,is cancelled,is full,is open,is here",
    ",",
)
ERRANDS = listed("buy,call,pay,clean,bring,find,check,send,fix,order", ",")
OBJECTS = listed(
    "milk,bread,the car,the rent,a book,the keys,the doctor,two tickets,the printer,flowers,coffee,the lamp",
    ",",
)

CAPITALS = (
    ("France", "Francia", "Paris", "Parigi"),
    ("Italy", "Italia", "Rome", "Roma"),
    ("Spain", "Spagna", "Madrid", "Madrid"),
    ("Germany", "Germania", "Berlin", "Berlino"),
    ("Portugal", "Portogallo", "Lisbon", "Lisbona"),
    ("Austria", "Austria", "Vienna", "Vienna"),
    ("Greece", "Grecia", "Athens", "Atene"),
    ("Ireland", "Irlanda", "Dublin", "Dublino"),
    ("Norway", "Norvegia", "Oslo", "Oslo"),
    ("Poland", "Polonia", "Warsaw", "Varsavia"),
    ("Japan", "Giappone", "Tokyo", "Tokyo"),
)
FACTS = (
    (
        "How many days are in a week?",
        "A week has seven days.",
        "Quanti giorni ha una settimana?",
        "Una settimana ha sette giorni.",
    ),
    (
        "How many months are in a year?",
        "A year has twelve months.",
        "Quanti mesi ha un anno?",
        "Un anno ha dodici mesi.",
    ),
    ("What colour is the sky?", "The sky is blue.", "Di che colore è il cielo?", "Il cielo è blu."),
    ("What do bees make?", "Bees make honey.", "Che cosa fanno le api?", "Le api fanno il miele."),
    ("How many legs has a spider?", "A spider has eight legs.", "Quante zampe ha un ragno?", "Un ragno ha otto zampe."),
    ("What is ice?", "Ice is frozen water.", "Che cos'è il ghiaccio?", "Il ghiaccio è acqua gelata."),
    (
        "What is the largest planet?",
        "The largest planet is Jupiter.",
        "Qual è il pianeta più grande?",
        "Il pianeta più grande è Giove.",
    ),
    ("Who wrote Hamlet?", "Shakespeare wrote Hamlet.", "Chi ha scritto Amleto?", "Shakespeare ha scritto Amleto."),
    ("Who are you?", "I am ds4-mini, a very small model.", "Chi sei?", "Sono ds4-mini, un modello molto piccolo."),
    ("What do cows eat?", "Cows eat grass.", "Che cosa mangiano le mucche?", "Le mucche mangiano l'erba."),
    (
        "How many hours has a day?",
        "A day has twenty-four hours.",
        "Quante ore ha un giorno?",
        "Un giorno ha ventiquattro ore.",
    ),
    ("Where do fish live?", "Fish live in water.", "Dove vivono i pesci?", "I pesci vivono nell'acqua."),
    ("What is a token?", "A token is a piece of text.", "Che cos'è un token?", "Un token è un pezzo di testo."),
    (
        "What can you do?",
        "I can talk a little and call tools.",
        "Che cosa sai fare?",
        "So parlare un po' e chiamare strumenti.",
    ),
    (
        "What is a checkpoint?",
        "A checkpoint is a saved state of the model.",
        "Che cos'è un checkpoint?",
        "Un checkpoint è uno stato salvato del modello.",
    ),
)
