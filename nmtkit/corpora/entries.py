"""The settings of one corpus in the catalogue."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import nmtkit.corpora  # noqa: F401  # importing it registers every source and reader
from nmtkit.corpora.readers import READERS, Reader
from nmtkit.corpora.sources import SOURCES, CorpusSource
from nmtkit.settings import Field, Name, Settings, field_validator, model_validator

if TYPE_CHECKING:
    AnyReader = Reader
    AnySource = CorpusSource
else:
    _READERS = tuple(READERS.get(name) for name in READERS.names())
    _SOURCES = tuple(SOURCES.get(name) for name in SOURCES.names())
    AnyReader = Annotated[Union[_READERS], Field(discriminator="kind")]  # noqa: UP007  # the members are not known here
    AnySource = Annotated[Union[_SOURCES], Field(discriminator="kind")]  # noqa: UP007  # nor are these


class Parameter(Settings):
    """What may stand for one placeholder of a name: one of the values, or what the pattern allows if there are none."""

    values: dict[str, str] = Field(default_factory=dict)
    """The values it may have, each with what the publisher calls it; a list where that is the same."""
    example: str = ""
    """Where there are no values: one that works, for the list of corpora."""
    pattern: str = r"[A-Za-z0-9_.]+"
    """Where there are no values: the regular expression that a value matches."""

    @model_validator(mode="before")
    @classmethod
    def _as_values(cls, given: Any) -> Any:
        return {"values": given} if isinstance(given, list) else given

    @field_validator("values", mode="before")
    @classmethod
    def _same_there(cls, given: Any) -> Any:
        return {value: value for value in given} if isinstance(given, list) else given

    @model_validator(mode="after")
    def _has_one(self) -> "Parameter":
        if not self.values and not self.example:
            raise ValueError("list its `values`, or give an `example` where any will do")
        return self

    @property
    def shown(self) -> list[str]:
        """The values, or the example."""
        return list(self.values) or [self.example]


class Keep(Settings):
    """Which pairs are kept. Those that the corpus itself gives for validation or testing are never left out.

    Words are what white space separates; in languages that are written without spaces two letters count as a word.
    """

    min_words: int = Field(default=1, ge=0)
    """The fewest words of a side."""
    max_words: int | None = Field(default=None, ge=1)
    """The most words of a side; default: no limit."""
    min_tgt_words: int | None = Field(default=None, ge=0)
    """Another limit for targets; default: the same."""
    max_tgt_words: int | None = Field(default=None, ge=1)
    """Another limit for targets; default: the same."""
    max_ratio: float | None = Field(default=None, gt=1.0)
    """The most words of one side for each word of the other; default: no limit."""
    letters: float = Field(default=0.0, ge=0.0, le=1.0)
    """The share of letters and marks, white space not counted, that a side has at least."""
    identical: bool = True
    """Whether pairs of two equal sides are kept."""
    duplicates: bool = False
    """Whether a pair that occurred before is kept."""


class Split(Settings):
    """How pairs are divided where the corpus itself does not say: by their group, whole groups only."""

    valid: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The share of the groups that goes to validation."""
    test: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The share of the groups that goes to the test set."""
    at_most: int | None = Field(default=None, ge=1)
    """The most pairs of validation and of test; what is over goes to train. Default: no limit."""

    @model_validator(mode="after")
    def _leave_some(self) -> "Split":
        if self.valid + self.test >= 1.0:
            raise ValueError("valid and test together leave nothing for train")
        return self


class Entry(Settings):
    """One corpus of the catalogue, or a family of them whose name has placeholders such as {src}.

    A placeholder of the name may stand in every text below it, and with `their_` before it, {their_src}, for what the
    publisher calls the value. {first} and {second} are src and tgt in alphabetical order, {their_first} and
    {their_second} the publisher's names of them in alphabetical order.
    """

    title: str
    """What it is, in a few words."""
    task: Literal["translation", "summarization"] = "translation"
    """What it is good for."""
    src: str
    """The language of the source, by its code: en, de, zh_CN."""
    tgt: str
    """The language of the target; of summaries the same."""
    size: str
    """What to expect, in words: pairs, and bytes to be downloaded."""
    licence: str
    """Its name, and a line on what it asks."""
    homepage: str = ""
    """Where its makers describe it."""
    citation: str = ""
    """The paper to be cited."""
    parameters: dict[str, Parameter] = Field(default_factory=dict)
    """What may stand for each placeholder of the name: a list of values, or an example where any will do."""
    sources: list[AnySource] = Field(min_length=1)
    """Where its files come from; the reader gets them in this order."""
    read: AnyReader
    """How pairs are read from the files."""
    keep: Keep = Keep()
    """Which pairs are kept."""
    split: Split = Split()
    """How they are divided."""
    expected: dict[Literal["train", "valid", "test"], int] = Field(default_factory=dict)
    """The pairs that its publisher or its papers count in the splits that it gives itself, before any are left out. The
    user is told where it is not what was read."""
    recipe: Name = ""
    """The name of a recipe of nmtkit's that trains it; where there is none of that name, one is made by the size."""

    @model_validator(mode="after")
    def _two_languages(self) -> "Entry":
        if self.task == "translation" and self.src == self.tgt:
            raise ValueError(f"source and target are the same language, {self.src!r}")
        return self
