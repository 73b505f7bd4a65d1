"""French inflection: conjugation, participles, adjectives, plurals and numbers."""

# Irregular verbs: six present forms, stem of the future, past participle and, if irregular, six subjunctive forms.
_IRREGULAR_TABLE = """
être      suis es est sommes êtes sont | ser | été | sois sois soit soyons soyez soient
avoir     ai as a avons avez ont | aur | eu | aie aies ait ayons ayez aient
aller     vais vas va allons allez vont | ir | allé | aille ailles aille allions alliez aillent
faire     fais fais fait faisons faites font | fer | fait | fasse fasses fasse fassions fassiez fassent
pouvoir   peux peux peut pouvons pouvez peuvent | pourr | pu | puisse puisses puisse puissions puissiez puissent
vouloir   veux veux veut voulons voulez veulent | voudr | voulu | veuille veuilles veuille voulions vouliez veuillent
savoir    sais sais sait savons savez savent | saur | su | sache saches sache sachions sachiez sachent
devoir    dois dois doit devons devez doivent | devr | dû
venir     viens viens vient venons venez viennent | viendr | venu
tenir     tiens tiens tient tenons tenez tiennent | tiendr | tenu
dormir    dors dors dort dormons dormez dorment | dormir | dormi
partir    pars pars part partons partez partent | partir | parti
sortir    sors sors sort sortons sortez sortent | sortir | sorti
mentir    mens mens ment mentons mentez mentent | mentir | menti
courir    cours cours court courons courez courent | courr | couru
mourir    meurs meurs meurt mourons mourez meurent | mourr | mort
ouvrir    ouvre ouvres ouvre ouvrons ouvrez ouvrent | ouvrir | ouvert
offrir    offre offres offre offrons offrez offrent | offrir | offert
lire      lis lis lit lisons lisez lisent | lir | lu
dire      dis dis dit disons dites disent | dir | dit
écrire    écris écris écrit écrivons écrivez écrivent | écrir | écrit
rire      ris ris rit rions riez rient | rir | ri
sourire   souris souris sourit sourions souriez sourient | sourir | souri
conduire  conduis conduis conduit conduisons conduisez conduisent | conduir | conduit
construire construis construis construit construisons construisez construisent | construir | construit
traduire  traduis traduis traduit traduisons traduisez traduisent | traduir | traduit
voir      vois vois voit voyons voyez voient | verr | vu
croire    crois crois croit croyons croyez croient | croir | cru
boire     bois bois boit buvons buvez boivent | boir | bu
recevoir  reçois reçois reçoit recevons recevez reçoivent | recevr | reçu
prendre   prends prends prend prenons prenez prennent | prendr | pris
mettre    mets mets met mettons mettez mettent | mettr | mis
suivre    suis suis suit suivons suivez suivent | suivr | suivi
connaître connais connais connaît connaissons connaissez connaissent | connaîtr | connu
naître    nais nais naît naissons naissez naissent | naîtr | né
peindre   peins peins peint peignons peignez peignent | peindr | peint
pleuvoir  pleus pleus pleut pleuvons pleuvez pleuvent | pleuvr | plu
"""
_SAME_AS = {  # prefix + base: conjugated like the base
    "apprendre": ("ap", "prendre"),
    "comprendre": ("com", "prendre"),
    "promettre": ("pro", "mettre"),
    "revenir": ("re", "venir"),
    "devenir": ("de", "venir"),
    "souvenir": ("sou", "venir"),
    "appartenir": ("appar", "tenir"),
    "endormir": ("en", "dormir"),
}
# e -> è before a silent ending and in the future
_GRAVE = frozenset({"acheter", "lever", "promener"})
_ACUTE = frozenset({"préférer", "espérer", "protéger"})  # é -> è before a silent ending only
# l -> ll, t -> tt before a silent ending and in the future
_DOUBLE = frozenset({"appeler", "jeter"})
_ETRE_VERBS = frozenset(
    {
        "aller",
        "venir",
        "revenir",
        "devenir",
        "arriver",
        "partir",
        "sortir",
        "entrer",
        "rentrer",
        "rester",
        "tomber",
    }
    | {"mourir", "naître"}
)

_IMPERFECT = ("ais", "ais", "ait", "ions", "iez", "aient")
_FUTURE = ("ai", "as", "a", "ons", "ez", "ont")
_SUBJUNCTIVE = ("e", "es", "e", "ions", "iez", "ent")


def _irregular() -> dict[str, list[list[str]]]:
    table = {}
    for line in _IRREGULAR_TABLE.strip().splitlines():
        verb, rest = line.split(maxsplit=1)
        table[verb] = [field.split() for field in rest.split("|")]
    for verb, (prefix, base) in _SAME_AS.items():
        table[verb] = [[prefix + form for form in field] for field in table[base]]
    return table


_IRREGULAR = _irregular()


def _strong(verb: str) -> str:
    """Stem of an -er verb before a silent ending: achèt-, préfèr-, appell-, nettoi-."""
    stem = verb[:-2]
    if verb in _GRAVE:
        cut = stem.rindex("e")
        return stem[:cut] + "è" + stem[cut + 1 :]
    if verb in _ACUTE:
        cut = stem.rindex("é")
        return stem[:cut] + "è" + stem[cut + 1 :]
    if verb in _DOUBLE:
        return stem + stem[-1]
    if stem.endswith(("oy", "ay", "uy")):
        return stem[:-1] + "i"
    return stem


def _weak(verb: str, ending: str) -> str:
    """Stem and ending of an -er verb before a spoken ending: mange-ons, commenç-ons."""
    stem = verb[:-2]
    if ending[0] in "ao":
        stem = stem + "e" if stem.endswith("g") else stem[:-1] + "ç" if stem.endswith("c") else stem
    return stem + ending


def _present(verb: str) -> list[str]:
    if verb in _IRREGULAR:
        return _IRREGULAR[verb][0]
    stem = verb[:-2]
    if verb.endswith("er"):
        strong = _strong(verb)
        return [
            strong + "e",
            strong + "es",
            strong + "e",
            _weak(verb, "ons"),
            _weak(verb, "ez"),
            strong + "ent",
        ]
    if verb.endswith("ir"):
        return [stem + ending for ending in ("is", "is", "it", "issons", "issez", "issent")]
    return [stem + ending for ending in ("s", "s", "", "ons", "ez", "ent")]


def _future_stem(verb: str) -> str:
    if verb in _IRREGULAR:
        return _IRREGULAR[verb][1][0]
    if verb == "envoyer":
        return "enverr"
    if verb.endswith("er"):
        return (verb[:-2] if verb in _ACUTE else _strong(verb)) + "er"
    return verb if verb.endswith("ir") else verb[:-1]


def _imperfect(verb: str) -> list[str]:
    if verb == "être":
        return ["ét" + ending for ending in _IMPERFECT]
    if verb.endswith("er") and verb not in _IRREGULAR:
        return [_weak(verb, ending) for ending in _IMPERFECT]
    return [_present(verb)[3][:-3] + ending for ending in _IMPERFECT]


def _subjunctive(verb: str) -> list[str]:
    if verb in _IRREGULAR and len(_IRREGULAR[verb]) == 4:
        return _IRREGULAR[verb][3]
    forms = [_present(verb)[5][:-3] + ending for ending in _SUBJUNCTIVE]
    forms[3:5] = _imperfect(verb)[3:5]
    return forms


def conjugate(verb: str, tense: str, slot: int) -> str:
    """One finite form.

    Args:
        verb: the infinitive, without `se`.
        tense: `présent`, `imparfait`, `futur`, `conditionnel`, `subjonctif` or `impératif`.
        slot: 1 je, 2 tu, 3 il, 4 nous, 5 vous, 6 ils.
    """
    i = slot - 1
    if tense == "présent":
        return _present(verb)[i]
    if tense == "imparfait":
        return _imperfect(verb)[i]
    if tense == "futur":
        return _future_stem(verb) + _FUTURE[i]
    if tense == "conditionnel":
        return _future_stem(verb) + _IMPERFECT[i]
    if tense == "subjonctif":
        return _subjunctive(verb)[i]
    if tense == "impératif":
        return _subjunctive(verb)[i] if verb in ("être", "avoir") else _present(verb)[i]
    raise ValueError(f"no such tense: {tense}")


def participle(verb: str, gender: str = "m", number: str = "s") -> str:
    """Past participle in agreement with a gender (`m`, `f`) and a number (`s`, `p`)."""
    regular = verb[:-2] + {"er": "é", "ir": "i", "re": "u"}.get(verb[-2:], "")
    form = _IRREGULAR[verb][2][0] if verb in _IRREGULAR else regular
    if form == "dû" and (gender, number) != ("m", "s"):
        form = "du"
    form += "e" if gender == "f" else ""
    return form if number == "s" or form.endswith("s") else form + "s"


def takes_etre(verb: str) -> bool:
    """Whether the passé composé is formed with être (reflexive verbs, which always are, apart)."""
    return verb in _ETRE_VERBS


def plural(noun: str) -> str:
    """Regular plural of a noun or of a masculine adjective."""
    if noun.endswith(("s", "x", "z")):
        return noun
    if noun.endswith(("eau", "eu")) and noun != "bleu":
        return noun + "x"
    if noun.endswith("al"):
        return noun[:-1] + "ux"
    return noun + "s"


def feminine(adjective: str) -> str:
    """Regular feminine of an adjective."""
    if adjective.endswith("e"):
        return adjective
    for ending, changed in (
        ("er", "ère"),
        ("eux", "euse"),
        ("eur", "euse"),
        ("en", "enne"),
        ("on", "onne"),
    ):
        if adjective.endswith(ending):
            return adjective[: -len(ending)] + changed
    return adjective + "e"


_UNITS = (
    *(
        "zéro",
        "un",
        "deux",
        "trois",
        "quatre",
        "cinq",
        "six",
        "sept",
        "huit",
        "neuf",
        "dix",
        "onze",
        "douze",
        "treize",
    ),
    *("quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf"),
)
_TENS = {20: "vingt", 30: "trente", 40: "quarante", 50: "cinquante", 60: "soixante"}


def number(n: int, gender: str = "m") -> str:
    """A number from 0 to 100 in words: soixante et onze, quatre-vingts, quatre-vingt-un."""
    if not 0 <= n <= 100:
        raise ValueError(f"numbers from 0 to 100 only, not {n}")
    one = "une" if gender == "f" else "un"
    if n == 1:
        return one
    if n < 20:
        return _UNITS[n]
    if n == 100:
        return "cent"
    if n == 80:
        return "quatre-vingts"
    if n > 80:
        return "quatre-vingt-" + (one if n == 81 else _UNITS[n - 80])
    base = n // 10 * 10 if n < 70 else 60
    rest = n - base
    if rest == 0:
        return _TENS[base]
    if rest in (1, 11):
        return f"{_TENS[base]} et {one if rest == 1 else 'onze'}"
    return f"{_TENS[base]}-{_UNITS[rest]}"
