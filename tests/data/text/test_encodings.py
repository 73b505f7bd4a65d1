"""Encodings of text files: what is recognized, and how text is read in a named encoding."""

import gzip
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.files.encodings import (
    FUNCTION_WORDS,
    EncodingEvidence,
    guess_encoding,
    guess_wide_encoding,
)
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.files.names import parse_encodings, reading_as
from nmtkit.data.text.files.text_file import TextFile, encoding_evidence
from nmtkit.data.text.reading import read_pairs

TEXTS = {
    "French": "Le chef du village a commandé cent vingt tentes.\nL'infirmière a vérifié les bâches à l'école.\n"
    "Nous étions très fatigués après la journée.\nOù est passé le garçon ?\n",
    "German": "Die Schwester prüfte die Vorräte.\nWir müssen früh über die Straße gehen.\nDas Mädchen wäscht sich.\n",
    "Spanish": "La enfermera revisó las provisiones.\nMañana temprano tenemos que cruzar la calle.\n¿Dónde está él?\n",
    "Polish": "Pielęgniarka sprawdziła zapasy.\nMusimy jutro wcześnie przejść przez ulicę.\nDziewczynka myje ręce, "
    "żeby być czysta.\nŻółw gęślą jaźń.\n",
    "Czech": "Sestra zkontrolovala zásoby.\nZítra brzy ráno musíme přejít ulici.\nDívka si myje ruce, aby byly čisté.\n"
    "Příliš žluťoučký kůň.\n",
    "Turkish": "Hemşire malzemeleri kontrol etti.\nYarın sabah erkenden sokağı geçmeliyiz.\nKız ellerini yıkıyor.\n",
    "Russian": "Медсестра проверила запасы.\nЗавтра рано утром нам нужно перейти улицу.\nДевочка моет руки.\n",
    "Ukrainian": "Медсестра перевірила запаси.\nЗавтра вранці нам треба перейти вулицю.\nДівчинка миє руки.\n",
    "Greek": "Η νοσοκόμα έλεγξε τις προμήθειες.\nΑύριο πρωί πρέπει να περάσουμε τον δρόμο.\n",
    "Hebrew": "האחות בדקה את האספקה.\nמחר מוקדם בבוקר עלינו לחצות את הרחוב.\n",
    "Arabic": "تفقدت الممرضة الإمدادات.\nغدا في الصباح الباكر يجب أن نعبر الشارع.\n",
    "Japanese": "看護師は備品を確認しました。\n明日の朝早く通りを渡らなければなりません。\n女の子は手を洗います。\n",
    "Chinese": "护士检查了物资。\n明天一早我们必须过马路。\n女孩洗手以保持清洁。\n",
    "Taiwanese": "護士檢查了物資。\n明天一早我們必須過馬路。\n女孩洗手以保持清潔。\n",
    "Korean": "간호사가 물자를 확인했습니다.\n내일 아침 일찍 길을 건너야 합니다.\n",
}
ENCODINGS = [
    *[("French", encoding) for encoding in ("cp1252", "iso8859-15", "mac-roman", "cp850")],
    *[("German", encoding) for encoding in ("cp1252", "mac-roman")],
    ("Spanish", "cp1252"),
    *[("Polish", encoding) for encoding in ("cp1250", "iso8859-2")],
    *[("Czech", encoding) for encoding in ("cp1250", "iso8859-2")],
    ("Turkish", "cp1254"),
    *[("Russian", encoding) for encoding in ("cp1251", "koi8-r", "cp866", "iso8859-5")],
    *[("Ukrainian", encoding) for encoding in ("cp1251", "koi8-u")],
    ("Greek", "cp1253"),
    ("Hebrew", "cp1255"),
    ("Arabic", "cp1256"),
    *[("Japanese", encoding) for encoding in ("shift_jis", "euc-jp")],
    ("Chinese", "gb18030"),
    ("Taiwanese", "big5"),
    ("Korean", "euc-kr"),
]


@pytest.mark.parametrize(("language", "encoding"), ENCODINGS)
def test_an_encoding_is_recognized_by_its_letters(language: str, encoding: str) -> None:
    data = TEXTS[language].encode(encoding)
    guess = guess_encoding(data)
    assert guess.certain
    assert data.decode(guess.names[0]) == TEXTS[language]


@pytest.mark.parametrize(("language", "encoding"), ENCODINGS)
def test_a_single_line_is_never_certain_and_wrong(language: str, encoding: str) -> None:
    for line in TEXTS[language].splitlines():
        data = line.encode(encoding)
        guess = guess_encoding(data + b"\n")
        assert not guess.certain or data.decode(guess.names[0]) == line


def test_stray_zero_bytes_do_not_make_ascii_text_utf_16() -> None:
    assert guess_wide_encoding(b'\0\n{"article": "ba ce", "summary": "ba"}\n') is None
    assert guess_wide_encoding("a line\nand a second one\n".encode("utf-16-be")) is not None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("language", TEXTS)
def test_wide_encodings_are_recognized_with_and_without_mark(language: str, encoding: str) -> None:
    if encoding == "utf-16-be" and language == "French":
        data = b"\xfe\xff" + TEXTS[language].encode(encoding)  # a mark of the other order
    else:
        data = TEXTS[language].encode(encoding)
    guess = guess_wide_encoding(data)
    assert guess is not None
    assert data.decode(guess.names[0]).lstrip("\ufeff") == TEXTS[language]


def test_zero_bytes_alone_are_no_wide_encoding() -> None:
    text = b"hello\0 world, yes\nthe second line \0\nand more text here\n"
    assert guess_wide_encoding(text * 50) is None
    assert guess_wide_encoding(bytes(64)) is None
    assert guess_wide_encoding(bytes(range(256)) * 20) is None


def test_a_file_of_utf8_with_damaged_lines_stays_utf8(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(
        "Das Mädchen wäscht sich.\n".encode() * 20 + "über die Straße\n".encode("cp1252")
    )
    assert encoding_evidence(str(path)).guess() is None
    path.write_bytes(
        "Das Mädchen\n".encode() * 20 + "Wir müssen über die Straße\n".encode("cp1252") * 60
    )
    mixed = encoding_evidence(str(path)).guess()
    assert mixed is not None
    assert not mixed.certain
    assert "some lines are UTF-8" in mixed.evidence


def test_a_damaged_archive_is_no_wide_encoding(tmp_path: Path) -> None:
    """Its readable lines count, as those of any other file do."""
    path = tmp_path / "text"
    lines = (TEXTS["Russian"] * 3).encode("cp1251") + TEXTS["German"].encode() * 20
    path.write_bytes(gzip.compress(lines)[:-8])
    evidence = encoding_evidence(str(path))
    assert (evidence.wide, evidence.guess()) == (None, None)
    path.write_bytes(TEXTS["Russian"].encode("utf-16"))
    wide = encoding_evidence(str(path)).wide
    assert wide is not None
    assert wide.names == ("utf-16",)


def test_evidence_needs_little_memory() -> None:
    evidence = EncodingEvidence()
    line = "Où est passé le garçon ?".encode("cp1252").decode("utf-8", "surrogateescape")
    for _ in range(50):
        evidence.add([line] * 1000, range(1000))
    assert evidence.invalid == 50_000
    assert len(evidence.sample) < 70_000


@pytest.mark.parametrize(
    "encoding", ["cp1252", "utf-16", "utf-16-le", "utf-32", "utf-8", "utf-8-sig", "utf-7"]
)
@pytest.mark.parametrize("size", [1, 40_000])
def test_text_is_read_in_a_named_encoding(tmp_path: Path, encoding: str, size: int) -> None:
    lines = TEXTS["French"].splitlines() * size
    path = tmp_path / "text"
    path.write_bytes("\r\n".join(lines).encode(encoding))
    assert list(read_lines(path, encoding)) == lines
    file = TextFile(str(path), encoding=encoding)
    read: list[str] = []
    while count := file.fill():
        read += file.take(count)[0]
    assert read == lines
    assert not file.take_faults() or encoding != "cp1252"


def test_lines_that_are_not_valid_in_a_named_encoding(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("Où ?\n".encode("cp1252") + b"\x81 \x8d\nlast\n")
    with pytest.raises(DataError, match="text, line 2: not valid Windows-1252, the specified"):
        list(read_lines(path, "cp1252"))
    file = TextFile(str(path), encoding="cp1252")
    assert file.fill() == 3
    lines, faulty = file.take(3)
    assert (lines[0], lines[2], faulty) == ("Où ?", "last", [1])


def test_utf8_is_not_read_as_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text(TEXTS["French"], encoding="utf-8")
    with pytest.raises(DataError, match="text: this is UTF-8, not Windows-1252"):
        list(read_lines(path, "cp1252"))
    with pytest.raises(DataError, match="text: this is UTF-8, not Windows-1252"):
        TextFile(str(path), encoding="cp1252").fill()


def test_an_error_names_the_encoding_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "train.fr"
    path.write_bytes(b"plain\n" * 16 + TEXTS["French"].encode("cp1252"))
    told = "train.fr, line 17: not valid UTF-8 .*; it looks like Windows-1252. Pass --encoding cp1252, or convert"
    with pytest.raises(DataError, match=told):
        list(read_lines(path))
    with pytest.raises(DataError, match=told):
        list(read_pairs(SplitFiles(src=[str(path)])))
    path.write_bytes(TEXTS["French"].encode("utf-16"))
    for read in (lambda: read_lines(path), lambda: read_pairs(SplitFiles(src=[str(path)]))):
        with pytest.raises(
            DataError, match=r"train.fr.*: this is UTF-16, not UTF-8. Pass --encoding utf-16, or"
        ):
            list(read())


def test_encodings_of_a_corpus(tmp_path: Path) -> None:
    src, tgt = tmp_path / "a.ru", tmp_path / "a.fr"
    src.write_bytes("Привет\n".encode("koi8-r"))
    tgt.write_bytes("Ça va\n".encode("cp1252"))
    files = SplitFiles(
        src=[str(src)], tgt=[str(tgt)], encoding={str(src): "koi8-r", str(tgt): "cp1252"}
    )
    assert [(pair.src, pair.tgt) for pair in read_pairs(files)] == [("Привет", "Ça va")]
    relative = SplitFiles(src=["a.ru"], tgt=["a.fr"], encoding={"a.ru": "koi8-r", "a.fr": "cp1252"})
    assert [pair.src for pair in read_pairs(relative.resolved(str(tmp_path)))] == ["Привет"]
    corpora = [{"src": "a", "tgt": "b", "encoding": "cp1252"}, {"src": "c", "tgt": "d"}]
    joined = SplitFiles.model_validate(corpora)
    assert [joined.encoding_of(path) for path in "abcd"] == ["cp1252", "cp1252", "", ""]
    with pytest.raises(ValueError, match="unknown encoding 'latin-seven'"):
        SplitFiles(src=["a"], encoding="latin-seven")


def test_the_encoding_of_a_command(tmp_path: Path) -> None:
    french, russian = tmp_path / "fr", tmp_path / "ru"
    french.write_bytes("Ça va\n".encode("cp1252"))
    russian.write_bytes("Привет\n".encode("koi8-r"))
    with reading_as(parse_encodings(["cp1252", f"{russian}=koi8-r"])):
        assert list(read_lines(french)) == ["Ça va"]
        assert list(read_lines(russian)) == ["Привет"]
    with pytest.raises(DataError, match="not valid UTF-8"):
        list(read_lines(french))
    with pytest.raises(NmtkitError, match="unknown encoding 'hex'"):
        parse_encodings(["hex"])
    with pytest.raises(NmtkitError, match="there is no file misspelt"):
        parse_encodings(["misspelt=cp1252"])
    with pytest.raises(NmtkitError, match=r"both .* are specified for"):
        parse_encodings(["cp1252", "koi8-r"])


@pytest.mark.parametrize("language", FUNCTION_WORDS)
def test_function_words_are_listed_once_and_in_small_letters(language: str) -> None:
    words = FUNCTION_WORDS[language]
    assert words == [word.lower() for word in words]
    assert len(set(words)) == len(words) >= 20
