"""Base class of all settings: frozen, with a docstring per field; validation reports all errors."""

import ast
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
    with_config,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError, core_schema
from typing_extensions import TypedDict

from nmtkit.core.errors import RecipeError, shorten
from nmtkit.core.formats import KeyPath
from nmtkit.core.limits import MAX_INT
from nmtkit.core.registry import MAX_KEYS, Registry, suggest_names, suggest_registered

__all__ = [
    "BeforeValidator",
    "Field",
    "field_validator",
    "model_validator",
]  # names from pydantic that all settings modules import from here

Locations = Mapping[KeyPath, str]

Width = Annotated[int, Field(le=2**20)]
"""Size of a layer, or number of positions."""
Depth = Annotated[int, Field(le=200)]
"""Number of stacked layers."""
Length = Annotated[int, Field(le=1_000_000)]
"""Number of tokens that a model may generate."""
Beam = Annotated[int, Field(le=1000)]
"""Number of hypotheses kept per sentence."""

MAX_NAME_BYTES = 200
"""Maximum number of bytes in a name, which leaves room for a suffix or random letters in a file name."""


def is_valid_name(text: str) -> bool:
    """Returns whether this can be the name of a recipe, run, stage or corpus, and thus of a folder."""
    plain = text.isprintable() and not set(text) & set("/\\{}")
    return (
        plain
        and text[:1] not in (*".-~ ", "")
        and text[-1] != " "
        and len(text.encode("utf-8")) <= MAX_NAME_BYTES
    )


def _checked_name(text: str) -> str:
    if not is_valid_name(text):
        raise ValueError(
            f"not a valid name: a name must be 1 to {MAX_NAME_BYTES} bytes long, must not contain / \\ {{ }} or "
            "unprintable characters, must not begin with . - ~ or a space, and must not end with a space; choose a "
            "different name, for example with --set name=NAME"
        )
    return text


Name = Annotated[str, AfterValidator(_checked_name)]
"""Name of a recipe, run, stage or corpus."""


def registry_name(registry: Registry[Any], without: Collection[str] = ()) -> Any:
    """Returns the type of a setting whose value is the name of a registry member; the schema lists the members.

    `without` are names of members that are not values of the setting.
    """

    def names() -> list[str]:
        return [name for name in registry.names() if name not in without]

    def member(given: object) -> object:
        if given not in names():
            raise ValueError(f"not a valid value; {suggest_registered(str(given), names())}")
        return given

    return Annotated[
        str, BeforeValidator(member), Field(json_schema_extra={"enum": [*names()]}), registry
    ]


class Settings(BaseModel):
    """A frozen group of settings that rejects unknown keys; field docstrings are shown to users."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )

    @field_validator("*")
    @classmethod
    def _within_reach(cls, value: Any) -> Any:
        """Limits the range of all integers; a field may have narrower limits."""
        if isinstance(value, int) and abs(value) > MAX_INT:
            raise ValueError(f"integers must be between {-MAX_INT:,} and {MAX_INT:,}")
        return value

    @classmethod
    def meaning(cls, key: str) -> str:
        """Returns a field's docstring as one line, for help and schemas; the source file is parsed on demand."""
        texts = (
            _texts_under_fields(one).get(key) for one in cls.__mro__ if issubclass(one, Settings)
        )
        return " ".join(next(filter(None, texts), "").split())

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: Any
    ) -> dict[str, Any]:
        json_schema: dict[str, Any] = handler(schema)
        for key, described in handler.resolve_ref_schema(json_schema).get("properties", {}).items():
            if text := cls.meaning(key):
                described["description"] = text
        return json_schema

    def changed(self: "S", values: Mapping[str, Any]) -> "S":
        """Returns the settings with some values replaced; raises RecipeError if one is invalid."""
        return parse(type(self), {**self.model_dump(), **values}, "option")


S = TypeVar("S", bound=Settings)


@cache
def _texts_under_fields(cls: type[Settings]) -> dict[str, str]:
    texts = {}
    for field, text in pairwise(ast.parse(dedent(inspect.getsource(cls))).body[0].body):  # type: ignore[attr-defined]  # a class
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(words))
            ):
                texts[name] = inspect.cleandoc(words)
    return texts


class TaggedUnion:
    """Type of a group whose `kind` is the name of a registry member; the member's `Config` defines the settings.

    Only the module of that member is imported; the other modules are imported for errors, help and schemas.
    """

    def __init__(self, registry: Registry[Any], optional: bool = False) -> None:
        self.registry = registry
        self.optional = optional
        """Whether the group may be null."""

    def classes(self) -> list[type[Settings]]:
        """Returns the settings classes of all members."""
        return [self.registry.get(name).Config for name in self.registry.names()]

    def _checked(self, value: Any) -> Any:
        if value is None and self.optional:
            return None
        kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
        if isinstance(kind, str) and kind in self.registry:
            classes = [self.registry.get(kind).Config]
        else:
            classes = self.classes()  # the error lists them
        settings = _union(tuple(classes)).validate_python(value)
        type(
            settings
        ).model_rebuild()  # needed for serialization, because the type of the field is Any
        return settings

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        union = handler(_union(tuple(self.classes())).core_schema)
        return {"anyOf": [union, {"type": "null"}]} if self.optional else union


class SettingsByName:
    """Type of a group whose keys are names of registry members, and whose values are their weights or settings.

    A member's settings are its `Config`. 0 and null turn a member off. Only the members in the group are imported.
    """

    def __init__(
        self, registry: Registry[Any], left_out: Callable[[], Collection[str]] = frozenset
    ) -> None:
        self.registry = registry
        self.left_out = left_out

    def names(self) -> list[str]:
        """Returns the valid names."""
        left_out = self.left_out()
        return [name for name in self.registry if name not in left_out]

    def settings(self, name: str) -> type[Settings]:
        """Returns the settings class of a member."""
        settings: type[Settings] = self.registry.get(name).Config
        return settings

    def _checked(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise PydanticKnownError("dict_type")
        forms: dict[str, Any] = {}
        for name, member in value.items():
            if name not in self.names():
                raise ValueError(
                    f"unknown {self.registry.what} {name!r}; {suggest_registered(name, self.names())}"
                )
            is_off = member is None or (member == 0 and not isinstance(member, bool))
            if not is_off:
                is_weight = isinstance(member, int | float) and not isinstance(member, bool)
                forms[name] = Annotated[float, Field(ge=0)] if is_weight else self.settings(name)
        chosen = {name: value[name] for name in forms}
        return TypeAdapter(_dictionary(forms)).validate_python(chosen)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def meaning(self, name: str) -> str:
        """Returns the first paragraph of a member's docstring as one line."""
        return " ".join((inspect.getdoc(self.registry.get(name)) or "").split("\n\n")[0].split())

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        forms = {
            name: Annotated[float, Field(ge=0)] | self.settings(name) | None
            for name in self.names()
        }
        json_schema: dict[str, Any] = handler(TypeAdapter(_dictionary(forms)).core_schema)
        for name, described in (
            handler.resolve_ref_schema(json_schema).get("properties", {}).items()
        ):
            described["description"] = self.meaning(name)
        return json_schema


def _dictionary(forms: Mapping[str, Any]) -> Any:
    """Returns the type of a dictionary with these optional keys."""
    dictionary = TypedDict("dictionary", dict(forms), total=False)  # type: ignore[misc]  # noqa: UP013  # known only now
    return with_config(ConfigDict(strict=True, allow_inf_nan=False))(dictionary)


class _Kinds:
    """Annotation for a union of classes with different `kind`; unlike pydantic's unions, it may have a single class."""

    def __init__(self, classes: Sequence[type[Settings]]) -> None:
        self.classes = classes

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        schemas = {
            cls.model_fields["kind"].default: handler.generate_schema(cls) for cls in self.classes
        }
        return core_schema.tagged_union_schema(schemas, "kind", strict=True)


@cache
def _union(classes: tuple[type[Settings], ...]) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[Any, _Kinds(classes)])


def _settings_at(cls: type[BaseModel], path: KeyPath) -> tuple[type[BaseModel] | None, KeyPath]:
    """Follows an error's location from `cls`, dropping union tags, which files do not contain."""
    kept: list[str | int] = []
    here: list[type[BaseModel]] = [cls]
    members: SettingsByName | None = None
    for part in path:
        if members is not None:
            kept.append(part)
            here = [members.settings(str(part))]
            members = None
            continue
        fields = [c.model_fields[part] for c in here if part in c.model_fields]
        tagged = [
            c for c in here if "kind" in c.model_fields and c.model_fields["kind"].default == part
        ]
        if tagged and not fields:
            here = tagged
            continue
        kept.append(part)
        if fields:
            here = [c for field in fields for c in group_classes(field)]
            members = members_by_name(fields[0])
        elif not isinstance(part, int):
            break
    return (here[0] if len(here) == 1 else None), tuple(kept)


def group_classes(field: FieldInfo) -> list[type[BaseModel]]:
    """Returns the classes of settings that a field may contain."""
    named: list[type[BaseModel]] = [
        c for one in field.metadata if isinstance(one, TaggedUnion) for c in one.classes()
    ]
    return named or _classes_in(field.annotation)


def members_by_name(field: FieldInfo) -> SettingsByName | None:
    """Returns the `SettingsByName` of a field, if it has one."""
    return next((mark for mark in field.metadata if isinstance(mark, SettingsByName)), None)


def members_of(field: FieldInfo) -> dict[str, type[Settings]]:
    """Returns the settings classes of the members that a field may contain; empty without `SettingsByName`."""
    members = members_by_name(field)
    return {} if members is None else {name: members.settings(name) for name in members.names()}


def _classes_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [c for part in get_args(annotation) for c in _classes_in(part)]


def key_paths(cls: type[BaseModel], above: KeyPath = ()) -> Iterator[KeyPath]:
    """Yields every key of a group and of its nested groups, for all their kinds."""
    for key, field in cls.model_fields.items():
        yield (*above, key)
        for inner in group_classes(field):
            yield from key_paths(inner, (*above, key))
        for name, inner in members_of(field).items():
            yield (*above, key, name)
            yield from key_paths(inner, (*above, key, name))


def _is_registered(cls: type[BaseModel], path: KeyPath) -> bool:
    """Returns whether the kinds of the group at a path come from a registry, to which users can add kinds."""
    owner, _ = _settings_at(cls, path[:-1])
    field = owner.model_fields.get(str(path[-1])) if owner else None
    return field is not None and any(isinstance(mark, TaggedUnion) for mark in field.metadata)


def _advice(path: KeyPath, owner: type[BaseModel] | None, root: type[BaseModel]) -> str:
    """Returns a hint for an unknown key: the path of a key with the same name if there is only one, or similar keys."""
    elsewhere = {known for known in key_paths(root) if known[-1] == path[-1]}
    if len(elsewhere) == 1 and path not in elsewhere:
        return f"; did you mean {'.'.join(map(str, elsewhere.pop()))!r}?"
    return f"; {suggest_names(str(path[-1]), owner.model_fields, MAX_KEYS)}" if owner else ""


def _sentence(
    fault: Mapping[str, Any],
    cls: type[BaseModel],
    places: Locations,
    where: str,
    called: Callable[[KeyPath], KeyPath],
) -> str:
    """Returns a pydantic error as one sentence: place, dotted key, given value, valid values."""
    owner, path = _settings_at(cls, tuple(fault["loc"]))
    dotted = shorten(".".join(str(part) for part in called(path)))
    place = next((places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in places), where)
    kind, given = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        return f"{place}: unknown key `{dotted}`{_advice(path, owner, cls)}"
    if kind == "missing":
        return f"{place}: `{dotted}` is missing"
    if kind == "union_tag_not_found":
        return f"{place}: `{dotted}.kind` is missing"
    if kind == "union_tag_invalid":
        tags = [tag.strip(" '") for tag in fault["ctx"]["expected_tags"].split(",")]
        place = places.get((*path, "kind"), place)
        name = str(given["kind"])
        suggest = suggest_registered if _is_registered(cls, path) else suggest_names
        return (
            f"{place}: `{dotted}.kind`: unknown name {shorten(repr(name))}; {suggest(name, tags)}"
        )
    message = str(fault["msg"]).removeprefix("Value error, ")
    if kind == "literal_error":
        options = [
            option.strip(" '")
            for option in fault["ctx"]["expected"].replace(" or ", ", ").split(",")
        ]
        message = f"not a valid value; {suggest_names(str(given), options)}"
    shown = (
        "" if isinstance(given, (dict, list, BaseModel)) else f" (given: {shorten(repr(given))})"
    )
    return f"{place}: `{dotted}`: {message}{shown}" if dotted else f"{place}: {message}{shown}"


def parse(
    cls: type[S],
    data: Mapping[str, Any],
    where: str,
    places: Locations | None = None,
    called: Callable[[KeyPath], KeyPath] = lambda path: path,
) -> S:
    """Validates plain values, as parsed from YAML, against the settings class.

    Messages contain the place of a key from `places` (see `load_yaml`), or else `where`. `called` turns the path of a
    key into the path that the user knows.

    Raises:
        RecipeError: one line per error, with the place, the dotted key, the given value and the valid values; if there
            are many errors, only the first ones are listed.
    """
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        listed = [
            _sentence(dict(fault), cls, places or {}, where, called)
            for fault in faults[: RecipeError.MAX_FAULTS]
        ]
        raise RecipeError(*listed, more=len(faults) - len(listed)) from error
