"""Reading YAML with places, checking it against settings, and the sentences that come of a fault."""

from pathlib import Path
from typing import Literal

import pytest

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.formats import dump_yaml, load_yaml, parse_json, parse_value
from nmtkit.core.settings import Field, Settings, is_valid_name, model_validator, parse


class Inner(Settings):
    """A group."""

    size: int = Field(default=3, ge=1)
    """How large."""
    colour: Literal["red", "green"] = "red"
    """Which."""


class Outer(Settings):
    """What a file holds."""

    rate: float
    """How fast."""
    inner: Inner = Inner()
    """A group."""
    names: list[str] = Field(default_factory=list)
    """Some words."""

    @model_validator(mode="after")
    def _fits(self) -> "Outer":
        if self.rate > self.inner.size:
            raise ValueError("rate must not be above inner.size; raise inner.size")
        return self


def write(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key_has_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, "# what\nrate: 1e-3\ninner:\n  size: 4\nnames:\n  - a\n  - b\n")
    data, places = load_yaml(path)
    assert data == {"rate": 0.001, "inner": {"size": 4}, "names": ["a", "b"]}
    lines = {
        ("rate",): 2,
        ("inner",): 3,
        ("inner", "size"): 4,
        ("names",): 5,
        ("names", 0): 6,
        ("names", 1): 7,
    }
    assert places == {key: f"{path}, line {line}" for key, line in lines.items()}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-2.5e+2", -250.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("12", 12),
        ("1_000", 1000),
        ("e5", "e5"),
        ("1e", "1e"),
        ("true", True),
        ("", None),
        ("[1, a]", [1, "a"]),
        ("{kind: x}", {"kind": "x"}),
    ],
)
def test_values_are_what_everybody_means(text: str, value: object) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_files_that_are_missing_not_text_or_empty(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.yaml: cannot be read"):
        load_yaml(tmp_path / "nothing.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: gr\xfc\xdfe\n")
    with pytest.raises(DataError, match=r"latin\.yaml: not UTF-8"):
        load_yaml(tmp_path / "latin.yaml")
    assert load_yaml(write(tmp_path, "# nothing yet\n")) == ({}, {})


def test_all_faults_come_at_once_each_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, "rate: fast\ninner:\n  size: 0\n  color: red\nnames: [a, 2]\n")
    data, places = load_yaml(path)
    with pytest.raises(RecipeError) as caught:
        parse(Outer, data, str(path), places)
    rate, size, unknown, names = sorted(
        str(caught.value).removeprefix(f"{path}, ").split(f"\n{path}, ")
    )
    assert rate.startswith("line 1: `rate`: ")
    assert rate.endswith("(given: 'fast')")
    assert size.startswith("line 3: `inner.size`: ")
    assert (
        unknown
        == "line 4: unknown key `inner.color`; did you mean 'colour'? valid names: colour, size"
    )
    assert names.startswith("line 5: `names.1`: ")


def test_a_missing_key_and_an_unknown_name() -> None:
    with pytest.raises(RecipeError) as caught:
        parse(Outer, {"inner": {"colour": "gren"}}, "--set")
    assert sorted(str(caught.value).splitlines()) == [
        "--set: `inner.colour`: not a valid value; did you mean 'green'? valid names: green, red (given: 'gren')",
        "--set: `rate` is missing",
    ]


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"rate": 9.0}, r"^here: rate must not be above inner\.size; raise inner\.size$"),
        ({"rate": 1.0, "size": 4}, r"unknown key `size`; did you mean 'inner\.size'\?"),
        *(
            ({"rate": value}, "`rate`")
            for value in ("1", True, float("nan"), float("inf"), None, [1.0])
        ),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused(values: dict[str, object], fault: str) -> None:
    with pytest.raises(RecipeError, match=fault):
        parse(Outer, values, "here")


def test_changed_is_checked_and_leaves_the_old_alone() -> None:
    old = Outer(rate=1.0)
    assert old.changed({"rate": 2.0}) == Outer(rate=2.0)
    assert old.changed({}) == old
    assert old.rate == 1.0
    with pytest.raises(ValueError, match="frozen"):
        old.rate = 2.0
    with pytest.raises(RecipeError, match=r"option: unknown key `rat`; did you mean 'rate'\?"):
        old.changed({"rat": 2.0})
    with pytest.raises(RecipeError, match="option: rate must not be above"):
        old.changed({"rate": 4.0})


def test_dumped_and_read_again(tmp_path: Path) -> None:
    old = Outer(
        rate=1e-9,
        inner=Inner(size=5, colour="green"),
        names=["größe", "1e-3", "yes", "", "\x85", "a\u2028b", "\u2029"],
    )
    data, places = load_yaml(write(tmp_path, dump_yaml(old.model_dump(mode="json"))))
    assert list(data) == ["rate", "inner", "names"]
    assert parse(Outer, data, "file", places) == old


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        (b'"gr\xc3\xbc\xc3\x9fe"', "grüße"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\\ud800"', r"\ud800"),
        ("9" * 30, int("9" * 30)),
        ("[" * 100 + "]" * 100, None),
    ],
    ids=lambda part: repr(part)[:30],
)
def test_json_is_read_as_json(text: str | bytes, value: object) -> None:
    found = parse_json(text, "here")
    assert found == value or value is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        (b'"\xff"', "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (r'{"a": ["\ud800 and more"]}', r"'\ud800'"),
        (r'{"\udfff": 1}', r"'\udfff'"),
        ('"\udcff"', r"'\udcff'"),
        ("9" * 5000, "4300 digits"),
        ("[" * 101 + "]" * 101, "deep"),
        ('{"x": ' * 900 + "1" + "}" * 900, "deep"),
        ("[" * 100_000, "recursion depth"),
    ],
    ids=lambda part: repr(part)[:30],
)
def test_json_that_cannot_be_used_is_one_message_with_its_place(
    text: str | bytes, part: str
) -> None:
    with pytest.raises(DataError) as caught:
        parse_json(text, "text.jsonl, line 7")
    assert str(caught.value).startswith("text.jsonl, line 7: ")
    assert part in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_what_an_alias_repeats_is_a_value_of_its_own(tmp_path: Path) -> None:
    data, _ = load_yaml(
        write(tmp_path, "a: &a {x: [1]}\nb: *a\nc: {<<: *a, y: 2}\nd: {<<: *a, x: 3}\n")
    )
    assert data == {"a": {"x": [1]}, "b": {"x": [1]}, "c": {"x": [1], "y": 2}, "d": {"x": 3}}
    data["b"]["x"].append(2)
    assert data["a"] == {"x": [1]}


LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [" + ",".join([f"*a{n - 1}"] * 9) + "]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a: 1\nb: [\n", ["line 3", "not valid YAML"]),
        ("a: 1\nb: 2\na: 3\n", ["line 3", "duplicate key 'a', first used on line 1"]),
        ("a:\n  b: 1\n  b: 2\n", ["line 3", "duplicate key 'b', first used on line 2"]),
        ("a: 1\n{b: 2}: 3\n", ["line 2", "a key must be a word"]),
        ("- a\n", ["`key: value` lines", "list"]),
        ("a: 1\n---\nb: 2\n", ["line 2"]),
        (LAUGHS, ["line 1", "more than"]),
        ("a: 1\nb: &b [*b]\n", ["line 2", "deep"]),
        ("a: &b {x: {y: *b}}\n", ["line 1", "deep"]),
        ("".join(f"k{n}: {n}\n" for n in range(10_100)), ["line 10000", "more than"]),
        ("a: " + "[" * 20_000, ["deep"]),
        ("a: " + "[" * 200 + "]" * 200, ["line 1", "deep"]),
        ("a: &a " + "[" * 90 + "]" * 90 + "\nb: " + "[" * 20 + "*a" + "]" * 20, ["line 1", "deep"]),
        ("\n".join(" " * n + f"k{n}:" for n in range(200)), ["line 101", "deep"]),
        ("a: 1\nb: " + "9" * 5000, ["line 2", "digits"]),
        ("a: 1\nb: 0x" + "f" * 5000, ["line 2", "digits"]),
        ("a: 1\nb: 2024-13-45\n", ["line 2", "month"]),
        ("a: 1\nb: !!int x\n", ["line 2"]),
        ("a: 1\nb: !!bool x\n", ["line 2"]),
        ("a: 1\nb: !!timestamp x\n", ["line 2"]),
        ("a: 1\nb: !!map x\n", ["line 2", "is not a supported type"]),
        ("a: 1\nb: !!set {x}\n", ["line 2", "is not a supported type"]),
        ("a: 1\nb: !!python/object/apply:os.system ['x']\n", ["line 2", "is not a supported type"]),
        ('a: 1\nb: "x\\ud800"\n', ["line 2", "\\\\ud800"]),
        ('a: 1\n"\\udfff": 2\n', ["line 2", "\\\\udfff"]),
        ('a: 1\nb: "x\\0"\n', ["line 2", "\\\\u0000"]),
        ("a: 1\nb: \0\n", ["line 2", "x0000"]),
        ("# " + "x" * (1 << 23), ["KiB"]),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_a_broken_or_hostile_file_is_one_message_with_its_place(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    path = write(tmp_path, text)
    with pytest.raises((RecipeError, DataError)) as caught:
        load_yaml(path)
    said = str(caught.value)
    assert said.startswith(str(path))
    assert len(said.splitlines()) == 1
    assert len(said) < 1000
    for part in parts:
        assert part.replace("\\\\", "\\") in said


def test_what_is_not_too_deep_is_read(tmp_path: Path) -> None:
    data, places = load_yaml(write(tmp_path, "a: " + "[" * 99 + "]" * 99))
    assert len(places) == 99
    assert len(data["a"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        *("[1", "{{a}}", "2024-13-45", "._", "a: b: c", "\x00"),
        *("[" * 1500, "9" * 5000, '"\\ud800"', "&a [*a]", "!!set {a}", "x" * 5000 + ": {"),
    ],
    ids=lambda text: text[:9],
)
def test_a_broken_or_hostile_value_is_one_short_message(text: str) -> None:
    with pytest.raises(RecipeError, match="not a valid value") as caught:
        parse_value(text)
    assert len(str(caught.value)) < 1000


def test_of_many_faults_the_first_are_told() -> None:
    with pytest.raises(RecipeError) as caught:
        parse(Outer, {"rate": 1.0, **{f"k{n}": n for n in range(20_000)}}, "here")
    sentences = str(caught.value).splitlines()
    assert len(sentences) == 21
    assert sentences[0].startswith("here: unknown key `k0`")
    assert sentences[-1] == "and 19,980 more"


def test_what_was_given_is_not_repeated_at_length() -> None:
    with pytest.raises(RecipeError) as caught:
        parse(Outer, {"rate": "x" * 5000, "y" * 5000: 1, "inner": {"colour": "z" * 5000}}, "here")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [2**53, -(2**60), 10**40])
def test_every_whole_number_has_a_bound(value: int) -> None:
    class Unbounded(Settings):
        number: int | None = None

    assert parse(Unbounded, {"number": 2**53 - 1}, "here").number == 2**53 - 1
    with pytest.raises(RecipeError, match=r"here: `number`: integers must be between"):
        parse(Unbounded, {"number": value}, "here")


NAMES = [
    "demo",
    "multi30k-en-de",
    "1",
    "my recipe (2)",
    "größe",
    "名前",
    "हिन्दी",
    "a.b_c+d=0.1",
    "x" * 200,
]
NO_NAMES = [
    "",
    ".",
    "..",
    "../x",
    "/x",
    "a/b",
    "a\\b",
    "a\0",
    "a\nb",
    "a\u202eb",
    "\ud800",
    ".x",
    "-x",
    "~x",
    " x",
]
NO_NAMES += ["x ", "{x}", "x" * 201, "名" * 100]


@pytest.mark.parametrize("name", [*NAMES, *NO_NAMES])
def test_a_name_can_be_that_of_a_file(name: str) -> None:
    assert is_valid_name(name) == (name in NAMES)
