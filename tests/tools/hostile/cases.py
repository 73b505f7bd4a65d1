"""Strategies of cases: what a command is given. Every family is one; what is well is for the oracle to say."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.support.commands import WORDS

from .material import RECIPE, STAGES, SUMMARIES
from .runner import CLOSED

Draw = Callable[[SearchStrategy], object]


@dataclass(frozen=True)
class Case:
    """One command, and what it is to meet."""

    words: tuple[str, ...]
    """Its arguments; it works in a folder with the corpus."""
    stdin: bytes | str = b""
    files: dict[str, bytes] = field(default_factory=dict)
    """Written there before."""
    runs: tuple[str, ...] = ()
    """Copied to `runs/` there before."""
    harm: tuple[object, ...] | None = None
    """What is done to the first of the copies; see `oracle.harm`."""
    places: tuple[str, ...] = ()
    """Of which a refusal must name one."""
    lines: int | None = None
    """How many must come out where it ends well."""
    codes: tuple[int, ...] = (0, 2)
    device: str = ""
    """In place of standard output."""
    same: bool = False
    """Whether it must give the answer that it gives without harm, or none."""
    large: bool = False
    """Whether it may ask for more memory than there is."""
    reloads: bool = False
    """Whether it prints a recipe, which must say the same when it is read again."""


def among(words: str, *others: str) -> SearchStrategy:
    """One of some words, or of other texts."""
    return st.sampled_from([*words.split(), *others])


def mostly(usual: SearchStrategy, *others: SearchStrategy) -> SearchStrategy:
    """The first in half of the cases."""
    return st.sampled_from([*[usual] * len(others), *others]).flatmap(lambda one: one)


# ------------------------------------------------------------------------------------------------- recipes and settings

SIMPLE_VALUES = among("null true false 0 0.1 1 2 3 50 1000 word bpe adam cosine bleu loss")
ODD_VALUES = among(
    "~ no [] {} '' -1 1e400 -1e400 .nan .inf 1e-400 2024-13-45 0x1F 0o17 1:30 1_000 = << *a &a @a `a %a ../../up 1e9",
    *(
        "!!binary aGk=",
        "!!set {a, b}",
        "!!python/object:os.system x",
        "'\\0'",
        '"\\0"',
        '"\\ud800"',
        '"\\u2028"',
    ),
    *(
        "&a [*a]",
        "{a: {b: {c: 1}}}",
        "|\n    x",
        "x" * 5000,
        "9" * 5000,
        "9" * 20,
        "-" + "9" * 20,
        "\u202etxt",
    ),
)
NESTED = st.builds(
    lambda marks, depth, closed: marks[0] * depth + marks[1] * depth * closed,
    st.sampled_from([("[", "]"), ("{a: ", "}")]),
    st.sampled_from([3, 60, 1000, 5000, 100_000]),
    st.booleans(),
)
ALIASES = st.builds(
    lambda levels, width: "".join(
        f"x{n}: &x{n} [{', '.join([f'*x{n - 1}' if n else 'x'] * width)}]\n" for n in range(levels)
    ),
    st.integers(2, 12),
    st.integers(1, 10),
)
STRAY = st.one_of(
    among(
        "--- ... &x *x { ] !!map training: model:",
        "%YAML 9.9",
        ": :",
        "? [a]",
        "<<: *x",
        "\t",
        "# \0",
        "- -",
    ),
    among(
        "",
        "name: ../up",
        "name: /tmp/up",
        "extends: mutant",
        "extends: mutant.yaml",
        "seed: -1",
        "a: &a [*a]",
    ),
    NESTED.map("nested: ".__add__),
    ALIASES,
    st.integers(1, 20_000).map(lambda count: "".join(f"unknown{n}: 1\n" for n in range(count))),
    st.text(max_size=20),
)


@st.composite
def recipe_bytes(draw: Draw) -> bytes:
    """A recipe with some changes, in some encoding."""
    rows = draw(st.sampled_from([RECIPE, RECIPE + STAGES, SUMMARIES])).splitlines()
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        place = draw(st.integers(0, len(rows) - 1))
        row = rows[place]
        key, colon, value = row.partition(":")
        odd = draw(mostly(ODD_VALUES, SIMPLE_VALUES, NESTED))
        inner = draw(st.sampled_from([*re.finditer("(?<=: )[^,{}]+", row), None]))
        another = row[: inner.start()] + odd + row[inner.end() :] if inner else f"{key}: {odd}"
        changes = [another] * 6 + [
            f"{odd}{colon}{value}",
            "",
            f"{row}\n{row}",
            f" {row}",
            f"\t{row}",
        ]
        changes += [f"{row}\n{draw(STRAY)}", row.replace(",", f", {odd}: 1,", 1)]
        rows[place] = draw(st.sampled_from(changes))
    text = "\n".join(rows) + "\n"
    content = text.encode("utf-8", "surrogatepass")
    at = draw(st.integers(0, len(content)))
    changed = [
        content.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + content,
        text.encode("utf-16", "surrogatepass"),
    ]
    return draw(
        st.sampled_from(
            [content] * 10 + changed + [content[:at], content[:at] + b"\xff\x00" + content[at:]]
        )
    )


SHOW = ("recipe", "show", "tiny.yaml", "--resolved")


@st.composite
def recipes(draw: Draw) -> Case:
    """A changed recipe for all that read one."""
    brief = ("--set", "training.max_updates=1", "--set", "training.max_minutes=0.02")
    check, others = (
        ("recipe", "check", "tiny.yaml"),
        (("preprocess", "tiny.yaml"), ("train", "tiny.yaml", *brief)),
    )
    words = draw(st.sampled_from([check, check, SHOW, SHOW, ("check", "tiny.yaml"), *others]))
    codes = (0, 1, 2) if words[0] == "check" else (0, 2)
    return Case(
        words,
        files={"tiny.yaml": draw(recipe_bytes())},
        codes=codes,
        large=True,
        reloads=words == SHOW,
    )


LIKELY = {
    bool: among("true false"),
    int: among("0 1 2 3 50 1e9 -1"),
    float: among("0 0.1 0.999 1 1e-9 1e9 -1 .nan .inf"),
}


@st.composite
def settings(draw: Draw, values: dict[str, object]) -> Case:
    """A key with an odd value on the command line."""
    key = draw(st.sampled_from(list(values)))
    likely = LIKELY.get(type(values[key]), SIMPLE_VALUES)
    value = draw(mostly(likely, SIMPLE_VALUES, ODD_VALUES, NESTED, st.text(max_size=20)))
    key = draw(st.sampled_from([*[key] * 6, f"{key}.x", draw(st.text(max_size=20))]))
    # the kernel lets no argument have a NUL, or be longer
    given = f"{key}={value}".replace("\0", "")[:100_000]
    words = draw(st.sampled_from([("recipe", "check", "tiny.yaml"), SHOW]))
    places = ("--set", "tiny.yaml", "UTF-8", key.rpartition(".")[2].strip("\0"))
    return Case((*words, "--set", given), places=places, large=True, reloads=words == SHOW)


NUMBERS = among(
    "-1 0 0.5 1e9 1000000 2147483648 9223372036854775807 9223372036854775808 nan inf -inf 1e308 1e-308 x +7 1_0 0x10 ٣",
    *(
        "",
        " 5 ",
        "9" * 30,
        "9" * 5000,
        "gnmt:nan",
        "average:1e308",
        "gnmt:0.6",
        ".",
        "no/such",
        "/dev/full",
        "x" * 300,
    ),
)
ASKED = b"ba ce di\nfo gu\n\nzu ba ce ba\n"
PAIRS = ("--source", "test.src", "--target", "test.tgt")
OPTIONS = {
    ("translate", "-m", "runs/tiny"): (
        "--beam-size --n-best --max-length --min-length --no-repeat-ngram "
        "--length-penalty --batch-tokens --threads --checkpoint --device --search -m"
    ),
    ("summarize", "-m", "runs/sum"): "--window --max-source-tokens --lead --n-best --max-length",
    ("rescore", "-m", "runs/tiny", *PAIRS): "--length-penalty --batch-tokens --target",
    ("align", "-m", "runs/tiny", *PAIRS): "--threshold --layer --head --soft --source",
    (
        "score",
        "test.tgt",
        "--ref",
        "valid.tgt",
    ): "--n-samples --seed --metrics --tokenize --sentences",
    ("plot-attention", "-m", "runs/tiny", "ba ce"): "--layer --head --beam-size -o --what",
    ("average", "-m", "runs/tiny", "-o", "out.safetensors"): "--best --recent -o",
    ("preprocess", "tiny.yaml", "--run", "fresh"): "--workers --run --set",
}
PLACES = ("runs/", "folder", "option: ", "cannot read", "beam", "rnnsearch", "metric")
"""Others than an option or its value."""


@st.composite
def options(draw: Draw) -> Case:
    """One or two options with values at their ends."""
    words = draw(st.sampled_from(list(OPTIONS)))
    given = draw(st.lists(among(OPTIONS[words]), min_size=1, max_size=2, unique=True))
    more = [part for option in given for part in (option, draw(mostly(among("1 2 3 5"), NUMBERS)))]
    runs = ("tiny", "sum") if "runs/" in words[2] else ()
    places = (*more, *(option.strip("-").replace("-", "_") for option in given), *PLACES)
    return Case((*words, *more), b"ba ce ba\n\nce\n", runs=runs, places=places, large=True)


# ----------------------------------------------------------------------------------------------- text, JSON, alignments

ODD_LINES = among(
    "\ufeff \x1b[31m </s> ▁ {} 1-1 <script>alert(1)</script> \u202eba \x00",
    *("", " ", "ba\rce", "ba\u2028ce", "\x85", "<s> </s> <pad> <unk>", "\uffff\U0010ffff"),
    *("a\u0301" * 50, "👩\u200d👧" * 5, "ba " * 300, "x" * 20_000),
)
PLAIN_LINES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
DRAWN_LINES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30
)
LINES = mostly(PLAIN_LINES, ODD_LINES, DRAWN_LINES)


@st.composite
def text_bytes(draw: Draw, lines: Sequence[str]) -> bytes:
    """Lines as bytes: with either end, the last perhaps without, at times not UTF-8."""
    end = draw(st.sampled_from([b"\n"] * 4 + [b"\r\n"]))
    content = end.join(line.encode("utf-8") for line in lines) + draw(
        st.sampled_from([end, b""])
    ) * bool(lines)
    at = draw(st.integers(0, len(content)))
    return (
        content[:at]
        + draw(st.sampled_from([b""] * 20 + [b"\xff", b"\xc3", b"\xed\xa0\x80"]))
        + content[at:]
    )


@st.composite
def texts(draw: Draw, tiny: str, summarizer: str) -> Case:
    """Odd text for all that read text."""
    pairs = draw(st.lists(st.tuples(LINES, LINES), max_size=6))
    src, tgt = (draw(text_bytes([pair[end] for pair in pairs])) for end in (0, 1))
    count = src.count(b"\n") + (not src.endswith(b"\n") and bool(src))
    files, both = {"odd.src": src, "odd.tgt": tgt}, ("--source", "odd.src", "--target", "odd.tgt")
    streams = [
        ("translate", "-m", tiny),
        ("translate", "-m", tiny, "--json"),
        ("summarize", "-m", summarizer),
    ]
    streams += [
        ("translate", "-m", tiny, "--replace-unknown", "--scores"),
        ("summarize", "--lead", "1"),
    ]
    twos = [
        ("rescore", "-m", tiny, *both),
        ("align", "-m", tiny, *both),
        ("align", "-m", tiny, *both, "--soft", "a.json"),
    ]
    score, check = ("score", "odd.src", "--ref", "odd.tgt"), ("check", "odd.src", "odd.tgt")
    others = [(*score, *more) for more in ((), ("--json",), ("--by-length",))]
    others += [
        (*check, *more) for more in ((), ("--html", "a.html"), ("--json", "-"), ("--fix", "clean"))
    ]
    others += [("preprocess", "tiny.yaml", "--set", "data.train={src: odd.src, tgt: odd.tgt}")]
    words = draw(st.sampled_from(streams * 2 + twos * 2 + others))
    codes = (0, 1, 2) if words[0] == "check" else (0, 2)
    stdin, device, lines = src, "", None if words in others else count
    if words in streams:
        files = {}
        stdin, device = draw(
            st.sampled_from([(src, "")] * 20 + [(src, "/dev/full"), (src, CLOSED), (CLOSED, "")])
        )
    if device or stdin == CLOSED:
        lines = None
    return Case(
        words,
        stdin,
        files,
        (),
        None,
        ("standard", "odd.", "pair", "tokenizer"),
        lines,
        codes,
        device,
    )


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), PLAIN_LINES
    ),
    lambda one: (
        st.lists(one, max_size=3) | st.dictionaries(among("text article x"), one, max_size=2)
    ),
    max_leaves=6,
).map(json.dumps)
RAW_VALUES = among(
    '"\\ud800" "\\u0000" NaN 1e999', "", "'x'", "9" * 5000, NESTED_LIST := "[" * 3000 + "]" * 3000
)
RAW_LINES = among(
    'null [] 3 "x" { {} {"article":"x"',
    "",
    " ",
    "\ufeff{}",
    "\0",
    "[" * 20_000,
    f'{{"x": {NESTED_LIST}}}',
)


@st.composite
def json_line(draw: Draw, record: dict[str, object]) -> str:
    """A record with one value changed or taken away; or no record."""
    key = draw(st.sampled_from(list(record)))
    rest = json.dumps({name: value for name, value in record.items() if name != key})
    inner = record[key]
    value = draw(
        mostly(json_line(inner) if isinstance(inner, dict) else VALUES, VALUES, RAW_VALUES)
    )
    changed = f"{rest[:-1]}{', ' if len(record) > 1 else ''}{json.dumps(key)}: {value}}}"
    return draw(st.sampled_from([changed, changed, changed, changed, rest, draw(RAW_LINES)]))


BEST = {"text": "CE BA", "score": -1.5, "log_prob": -4.5, "tokens": ["CE", "BA"], "finished": True}
RECORDS = {
    "article": {"article": "ba ce . ba ce .", "summary": "ba ce"},
    "printed": {"line": 1, "best": BEST},
}


@st.composite
def jsons(draw: Draw, tiny: str, summarizer: str) -> Case:
    """JSON lines of odd shapes for all that read them."""
    kind = draw(st.sampled_from(["printed", "article", "article"]))
    good = json.dumps(RECORDS[kind])
    lines = [good] * draw(st.integers(0, 2)) + [draw(json_line(RECORDS[kind])), good]
    content = "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")
    files = {"odd.jsonl": content, "odd.src": b"ba ce\n" * len(lines)}
    places = ("line", "pair", "odd.jsonl", "standard input")
    rescore = ("rescore", "-m", tiny, "--source", "odd.src", "--target", "odd.jsonl")
    summarize = ("summarize", "-m", summarizer, "odd.jsonl#article")
    preprocess = ("preprocess", "sum.yaml", "--set", "data.train.jsonl=odd.jsonl")
    check = ("check", "odd.jsonl#article", "odd.jsonl#summary")
    score = ("score-summaries", "odd.jsonl", "--ref", "odd.jsonl", "--n-samples", "5")
    words = (
        rescore
        if kind == "printed"
        else draw(st.sampled_from([summarize, preprocess, check, score]))
    )
    count = len(lines) if words in (rescore, summarize) else None
    codes = (0, 1, 2) if words == check else (0, 2)
    return Case(words, content, files, places=places, lines=count, codes=codes)


SMALL = st.integers(0, 6).map(str)
NUMBER = mostly(
    SMALL, SMALL, SMALL, among("-1 99 x ٣ 1.5", "", "1" + "0" * 9, "9" * 19, "9" * 5000)
)
LINK = st.tuples(NUMBER, among("- - - ? p -- :", ""), NUMBER).map("".join)
ROWS = {
    "0-0 1-1": st.lists(LINK, max_size=5).map(" ".join),
    "1 1 1 S": st.lists(NUMBER | among("S P X"), min_size=2, max_size=5).map(" ".join),
}


@st.composite
def alignments(draw: Draw) -> Case:
    """Links of odd numbers and marks for all that read them."""
    good = draw(st.sampled_from(list(ROWS)))
    lines = draw(st.lists(mostly(st.just(good), ROWS[good]), max_size=3))
    files = {
        "odd.align": draw(text_bytes([*lines, good])),
        "good.align": f"{good}\n".encode() * (len(lines) + 1),
    }
    files |= {
        "odd.src": b"ba ce di fo\n" * (len(lines) + 1),
        "odd.tgt": b"FO DI CE BA\n" * (len(lines) + 1),
    }
    names = draw(
        st.sampled_from(
            [("odd.align", "good.align"), ("good.align", "odd.align"), ("odd.align",) * 2]
        )
    )
    more = draw(
        st.sampled_from(
            [(), ("--hyp-base", "1"), ("--ref-base", "1"), ("--reverse-hyp",), ("--json",)]
        )
    )
    score = ("score-alignments", names[0], "--ref", names[1], *more)
    train = (
        "preprocess",
        "tiny.yaml",
        "--set",
        "data.train={src: odd.src, tgt: odd.tgt, alignment: odd.align}",
    )
    return Case(
        draw(st.sampled_from([score, score, score, train])), files=files, places=(".align", "odd.")
    )


# ---------------------------------------------------------------------------------------------------------- run folders

RESUME = ("train", "tiny.yaml", "--run", "runs/half", "--resume")
USES = [
    ("translate", "-m", "runs/tiny"),
    ("rescore", "-m", "runs/tiny", *PAIRS),
    ("align", "-m", "runs/tiny", *PAIRS),
]
USES += [("average", "-m", "runs/tiny", "-o", "out.safetensors"), RESUME, RESUME]
FACTS = "update seconds used validating lr optimizer best_metric validations stream random"


def use_of(words: tuple[str, ...], harm: tuple[object, ...] | None) -> Case:
    """A command that reads a run, of which something is harmed."""
    run = "half" if words == RESUME else "tiny"
    return Case(
        words, ASKED, runs=(run,), harm=harm, places=(f"runs/{run}", "tiny.yaml"), same=True
    )


@st.composite
def folders(draw: Draw, names: Sequence[str]) -> Case:
    """One file of a run folder is damaged."""
    kinds = among("gone empty cut bit bit byte junk folder dangling circle pipe zeros")
    harm = ("file", draw(st.sampled_from(names)), draw(kinds), draw(st.floats(0, 0.999)))
    return use_of(draw(st.sampled_from(USES)), harm)


@st.composite
def states(draw: Draw) -> Case:
    """Weights or a state are a whole file, but not what was saved."""
    words = draw(st.sampled_from(USES))
    kinds = among("nan one-nan inf none flat float16 float64 int64 gone more renamed changed")
    tensor = ("tensor", draw(st.integers(0, 999)), draw(kinds))
    facts = ("facts", draw(among(FACTS, "")), draw(st.one_of(st.just("gone"), VALUES, RAW_VALUES)))
    return use_of(words, draw(st.sampled_from([tensor, facts] if words == RESUME else [tensor])))


def families(
    values: dict[str, object], runs: str, names: Sequence[str]
) -> dict[str, SearchStrategy]:
    """Every family.

    Args:
        values: of the keys of a recipe.
        runs: the folder of runs that are only read.
        names: of the files of a run.
    """
    both = f"{runs}/tiny", f"{runs}/sum"
    of_files = {"texts": texts(*both), "jsons": jsons(*both), "alignments": alignments()}
    of_runs = {"folders": folders(names), "states": states()}
    return {
        "recipes": recipes(),
        "settings": settings(values),
        "options": options(),
        **of_files,
        **of_runs,
    }
