"""Encodings other than UTF-8: names, guesses from a sample of a file, and conversion while a file is read.

`guess_encoding` assumes that a file has a single encoding. It decodes the sample with each common encoding and compares
the results: whether all bytes are valid, whether the letters belong to one language, and whether frequent words of that
language occur.
"""

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nmtkit.core.errors import DataError
from nmtkit.data.text.files.compression import ByteStream

SAMPLE_BYTES = 1 << 16
"""Maximum number of bytes from which an encoding is guessed."""
_SURE_LETTERS = 10
"""Text that is valid UTF-8 and has at least this many non-ASCII characters is considered to be UTF-8: text in a
different encoding is hardly ever valid UTF-8 by chance."""
BAD_CHARACTER = "\udcff"
"""Replaces bytes that are not valid in their file's encoding. Encoded as UTF-8, it becomes the byte 0xFF, which is not
valid UTF-8."""
BAD_BYTE = re.compile("[\udc80-\udcff]")
"""Matches an undecodable byte in a line, which the error handler `surrogateescape` decodes to a lone surrogate."""

_UTF16_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_UTF32_MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"}
_MIN_WESTERN = 0.2
"""Text counts as UTF-16 if at least this share of its characters is below U+0100 and thus has a zero byte."""

# ---------------------------------------------------------------------------------------------------------------- names

TITLES = {
    "cp1252": "Windows-1252",
    "iso8859-15": "ISO-8859-15",
    "cp1250": "Windows-1250",
    "iso8859-2": "ISO-8859-2",
    "cp1257": "Windows-1257",
    "cp1254": "Windows-1254",
    "cp1251": "Windows-1251",
    "koi8-r": "KOI8-R",
    "koi8-u": "KOI8-U",
    "iso8859-5": "ISO-8859-5",
    "cp866": "CP866",
    "mac-cyrillic": "Mac Cyrillic",
    "cp1253": "Windows-1253",
    "iso8859-7": "ISO-8859-7",
    "cp1255": "Windows-1255",
    "cp1256": "Windows-1256",
    "iso8859-6": "ISO-8859-6",
    "cp874": "Windows-874",
    "mac-roman": "Mac Roman",
    "cp850": "CP850",
    "cp852": "CP852",
    "cp932": "Shift-JIS",
    "euc-jp": "EUC-JP",
    "gb18030": "GB18030",
    "big5hkscs": "Big5",
    "cp949": "EUC-KR",
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16",
    "utf-16-be": "UTF-16",
    "utf-32": "UTF-32",
}
"""Names of encodings in messages, by Python name."""


def encoding_title(name: str) -> str:
    """Returns the name that is used in messages for an encoding with this Python name."""
    return TITLES.get(name, name)


# ----------------------------------------------------------------------------------------------------------- conversion


def _mark_bad(fault: UnicodeError) -> tuple[str, int]:
    if not isinstance(fault, UnicodeDecodeError):
        raise fault
    return BAD_CHARACTER, fault.end


codecs.register_error("nmtkit-mark", _mark_bad)


class Recoded:
    """Converts a stream to UTF-8 while it is read; undecodable bytes become the byte 0xFF.

    Raises a DataError if the text is clearly UTF-8 already, because each non-ASCII letter would turn into two or more
    wrong letters.
    """

    def __init__(self, stream: ByteStream, encoding: str, where: str) -> None:
        self._stream = stream
        self._encoding = encoding
        self._where = where
        self._decoder = codecs.getincrementaldecoder(encoding)("nmtkit-mark")
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._may_be_utf8 = not codecs.lookup(encoding).name.startswith("utf")
        self._ended = False

    def read1(self, size: int) -> bytes:
        """Returns about `size` more bytes; an empty result means the end of the stream."""
        while not self._ended:
            data = self._stream.read1(size)
            self._ended = not data
            if self._may_be_utf8:
                self._refuse_utf8(data)
            try:
                text = self._decoder.decode(data, final=self._ended)
            except (
                UnicodeError
            ) as fault:  # for example if UTF-16 ends in the middle of a byte-order mark
                raise DataError(
                    f"{self._where}: not valid {encoding_title(self._encoding)} ({fault})"
                ) from fault
            if text:
                return text.encode("utf-8", "surrogateescape")
        return b""

    def _refuse_utf8(self, data: bytes) -> None:
        """Raises a DataError if the first block with non-ASCII bytes is UTF-8; does not check later blocks."""
        if data.isascii():
            return
        self._may_be_utf8 = False
        try:
            text = self._utf8.decode(data)
        except UnicodeDecodeError:
            return
        letters = sum(letter > "\x7f" for letter in text)
        if letters >= _SURE_LETTERS:
            raise DataError(
                f"{self._where}: this is UTF-8, not {encoding_title(self._encoding)}. Remove --encoding, or specify "
                f"the encoding of a single file with --encoding FILE={self._encoding}"
            )


# ------------------------------------------------------------------------------------------------------------- evidence


@dataclass(frozen=True)
class EncodingGuess:
    """A guess at the encoding of a text."""

    names: tuple[str, ...]
    """Python names of the encodings that fit, best first; () if none fits."""
    certain: bool
    """Whether the text can be converted from the first encoding without asking the user."""
    evidence: str = ""
    """Reason for the guess, for messages."""

    @property
    def title(self) -> str:
        """Names of the encodings for messages, such as "Windows-1252 or Windows-1250"; "" if none fits."""
        titles = [encoding_title(name) for name in self.names]
        distinct_titles = dict.fromkeys(titles)  # keeps the order
        return " or ".join(distinct_titles)


def guess_wide_encoding(data: bytes) -> EncodingGuess | None:
    """Recognizes UTF-16 and UTF-32 by byte-order mark or zero bytes; returns None if a file is neither.

    `data` is the beginning of the file.
    """
    # UTF-32 comes first, because its byte-order mark begins with that of UTF-16.
    marks = {**_UTF32_MARKS, **_UTF16_MARKS}
    for mark, name in marks.items():
        if data.startswith(mark):
            return EncodingGuess((name,), True, "its byte-order mark")
    if b"\0" not in data[:SAMPLE_BYTES]:
        return None
    even_length = min(len(data), SAMPLE_BYTES) // 2 * 2
    sample = data[:even_length]
    visible = sample.translate(None, b"\0\t\r\n")
    if visible.isascii() and visible.decode().isprintable() and len(visible) > len(sample) * 3 / 4:
        return None  # ASCII text with a few stray zero bytes; in UTF-16, every other byte would be zero
    for name in ("utf-16-le", "utf-16-be"):
        if _is_utf16(sample, sample.decode(name, "replace")):
            return EncodingGuess((name,), True, "the positions of its zero bytes")
    return None


def _is_utf16(data: bytes, text: str) -> bool:
    """Returns whether `data` is UTF-16 text; `text` is the result of decoding it."""
    unlikely = text.count("\ufffd") + text.count("\0")
    for letter in text:
        if unicodedata.category(letter) in ("Cn", "Co", "Cs"):  # unassigned, private use, surrogate
            unlikely += 1
    if unlikely > len(text) / 100:
        return False
    # In Western text nearly every character has a zero byte.
    western = sum(letter <= "\xff" for letter in text)
    if western >= _MIN_WESTERN * len(text):
        return True
    # In any UTF-16 text, most bytes equal to "\n" belong to newlines, not to other characters.
    return 0 < data.count(b"\n") <= 2 * text.count("\n")


_LETTERS = {
    "French": "àâæçéèêëîïôœùûüÿ",
    "German": "äöüß",
    "Spanish": "áéíñóúü",
    "Portuguese": "àáâãçéêíóôõúü",
    "Italian": "àèéìíîòóùú",
    "Dutch": "áèéêëïóöüĳ",
    "Swedish": "åäöé",
    "Danish": "åæøé",
    "Norwegian": "åæøéòô",
    "Finnish": "åäöšž",
    "Icelandic": "áéíóúýðþæö",
    "Catalan": "àçèéíïòóúü·",
    "English": "éèêëïöçñàâôü",
    "Polish": "ąćęłńóśźż",
    "Czech": "áčďéěíňóřšťúůýž",
    "Slovak": "áäčďéíĺľňóôŕšťúýž",
    "Slovenian": "čšžćđ",
    "Croatian": "čćđšž",
    "Hungarian": "áéíóöőúüű",
    "Romanian": "ăâîşţșț",
    "Estonian": "äöõüšž",
    "Latvian": "āčēģīķļņšūž",
    "Lithuanian": "ąčęėįšųūž",
    "Turkish": "çğıöşüâîûİ",
    "Russian": "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъё",
    "Ukrainian": "оанивтіерсклудмпзьябгйчхжїцюшєщфґ",
    "Bulgarian": "аиоетнрсвлкдпмзъугящбчцхжйшфюь",
    "Serbian": "аоиенрсјтвукдлмпзбгчжшхњљћцђфџ",
    "Greek": "αοιετσνηρκπμυλςόίάέωδγήχθύώφβξζϊψΐϋΰ",
    "Hebrew": "יוהלארמתבשנדעחפקכטגםזסןצךףץ",
    "Arabic": "اليمنروتبةعدسفهكقحجشصطأضخىئغإذزثءآؤظ",
    "Persian": "ایرندهمتوبسشزکلگخفقحعپجآچذصطضغژظثئأؤإءةيكى",
    "Thai": "านรอก่เง้มยลวัดทีสิตะปบคุหแ็จ์พชขใไืูึผโำถซศฉธณภษญฟๆฝฏฐฆฌฬ๊๋",
    "Japanese": "",
    "Chinese": "",
    "Korean": "",
}
"""Non-ASCII letters of each language; letters of non-Latin scripts are sorted by frequency, most frequent first. The
last three languages have too many letters to list, see `_far_eastern_score`."""
_WESTERN = (
    "French",
    "German",
    "Spanish",
    "Portuguese",
    "Italian",
    "Dutch",
    "Swedish",
    "Danish",
    "Norwegian",
    "Finnish",
    "Icelandic",
    "Catalan",
    "English",
)
_CENTRAL = ("Polish", "Czech", "Slovak", "Slovenian", "Croatian", "Hungarian", "Romanian", "German")
_CYRILLIC = ("Russian", "Ukrainian", "Bulgarian", "Serbian")
_LANGUAGES = {
    "cp1252": _WESTERN,
    "iso8859-15": _WESTERN,
    "cp1250": _CENTRAL,
    "iso8859-2": _CENTRAL,
    "cp1257": ("Latvian", "Lithuanian", "Estonian"),
    "cp1254": ("Turkish",),
    "cp1251": _CYRILLIC,
    "koi8-r": ("Russian", "Bulgarian"),
    "koi8-u": ("Ukrainian",),
    "iso8859-5": _CYRILLIC,
    "cp866": ("Russian", "Bulgarian"),
    "mac-cyrillic": _CYRILLIC,
    "cp1253": ("Greek",),
    "iso8859-7": ("Greek",),
    "cp1255": ("Hebrew",),
    "cp1256": ("Arabic", "Persian"),
    "iso8859-6": ("Arabic",),
    "cp874": ("Thai",),
    "mac-roman": _WESTERN,
    "cp850": _WESTERN,
    "cp852": _CENTRAL,
    "cp932": ("Japanese",),
    "euc-jp": ("Japanese",),
    "gb18030": ("Chinese",),
    "big5hkscs": ("Chinese",),
    "cp949": ("Korean",),
}
"""Languages for which each encoding was designed. The most common encodings come first."""


def _read_function_words() -> dict[str, list[str]]:
    words: dict[str, list[str]] = {}
    text = (Path(__file__).parent / "function_words.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        language, _, listed = line.partition(": ")
        words[language] = listed.split()
    return words


FUNCTION_WORDS = _read_function_words()
"""The most frequent words of each language."""
_NOT_IN_WORDS = -4.0
"""Score of a character in an impossible position in a word, such as an uppercase letter after a lowercase letter."""
_FOREIGN_LETTER = -3.0
"""Score of a letter that the language does not use."""
_FREQUENT_WORD = 2.0
"""Score of a frequent word of the language."""
_MIN_SCORE = 6.0
"""Minimum score for a guess to count as certain; about six letters are enough, or two letters and two frequent
words."""
_MARGIN = 6.0
"""A guess is certain only if its score exceeds the score of every other decoding by at least this margin."""
_PUNCTUATION = frozenset(
    "\xa0“”‘’‚„«»‹›–—…•°©®™§¶¡¿·€£¥ªº²³½¼¾×±†‰`´¨，。、；：？！（）「」『』《》〈〉【】―～・　"
)
_APOSTROPHES = frozenset("’‘'´`·-‑\xad")
_HAN_AND_SPACE = re.compile("[\u4e00-\u9fff] (?=[\u4e00-\u9fff])")
# Text does not contain C1 control characters: if there are any, the encoding is wrong.
_CONTROLS = re.compile("[\x80-\x9f]")
_WORD = re.compile(r"[^\W\d_]+")


class _Candidate(NamedTuple):
    """An encoding, the text decoded with it, and the language that the text resembles most, with its score."""

    name: str
    language: str
    text: str
    score: float


def guess_encoding(sample: bytes) -> EncodingGuess:
    """Guesses the encoding of a text from some of its lines that are not UTF-8."""
    sample = sample[:SAMPLE_BYTES]
    end = sample.rfind(b"\n") + 1
    if end:
        sample = sample[:end]
    # Keyed by the decoded text: encodings that decode the sample identically are one candidate.
    candidates: dict[str, _Candidate] = {}
    for name, languages in _LANGUAGES.items():
        text = _CONTROLS.sub(BAD_CHARACTER, sample.decode(name, "nmtkit-mark"))
        best_score = candidates[text].score if text in candidates else 0.0
        for language in languages:
            score = _score(text, language)
            if score > best_score:
                best_score = score
                candidates[text] = _Candidate(name=name, language=language, text=text, score=score)
    ranked = sorted(candidates.values(), key=lambda candidate: candidate.score, reverse=True)
    if not ranked:
        return EncodingGuess((), False)
    best = ranked[0]
    likely = [candidate for candidate in ranked if candidate.score > best.score - _MARGIN]
    certain = best.score >= _MIN_SCORE and len(likely) == 1
    letters = Counter(letter for letter in best.text if letter > "\x7f" and letter.isalpha())
    frequent = " ".join(letter for letter, _ in letters.most_common(5))
    return EncodingGuess(
        names=tuple(candidate.name for candidate in likely[:3]),
        certain=certain,
        evidence=f"the decoded text has {best.language} letters and words; frequent letters: {frequent}",
    )


@cache
def _letter_weights(language: str) -> dict[str, float]:
    """Returns the score of each non-ASCII letter of a language.

    Letters of Latin alphabets score 1. In non-Latin scripts, nearly every byte decodes to a letter in every candidate
    encoding, so letters are weighted by frequency instead: from 1.5 for the most frequent to -1 for the rarest.
    """
    letters = _LETTERS[language]
    is_latin = unicodedata.name(letters[0]).startswith("LATIN")
    weights: dict[str, float] = {}
    for rank, letter in enumerate(letters):
        weight = 1.0 if is_latin else 1.5 - 2.5 * rank / (len(letters) - 1)
        weights[letter] = weight
        weights.setdefault(letter.upper(), weight)
    return weights


def _score(text: str, language: str) -> float:
    """Returns a score for how well a text fits a language: about 1 per fitting letter, negative for other letters."""
    if _LETTERS[language]:
        score = _letter_score(text, language)
    else:
        score = _far_eastern_score(text, language)
    frequent_words = set(FUNCTION_WORDS.get(language, ()))
    if frequent_words:
        count = sum(1 for word in _WORD.findall(text) if word.lower() in frequent_words)
        score += _FREQUENT_WORD * count
    return score


def _letter_score(text: str, language: str) -> float:
    weights = _letter_weights(language)
    is_latin = unicodedata.name(_LETTERS[language][0]).startswith("LATIN")
    score = 0.0
    padded = f" {text} "
    for match in re.finditer(r"[^\x00-\x7f]", padded):
        letter = match.group()
        before = padded[match.start() - 1]
        after = padded[match.end()]
        if letter in weights:
            score += weights[letter]
            wrong_case = letter.isupper() and before.islower()
            mixed_scripts = not is_latin and before.isascii() and before.isalpha()
            if wrong_case or mixed_scripts:
                score += _NOT_IN_WORDS
            continue
        if letter in _APOSTROPHES:
            continue
        if letter in _PUNCTUATION and not (before.isalpha() and after.isalpha()):
            continue
        score += _FOREIGN_LETTER
        if before.isalpha() and after.isalpha():
            score += _NOT_IN_WORDS
    return score


def _far_eastern_score(text: str, language: str) -> float:
    score = 0.0
    syllables = 0
    han = 0
    for letter in text:
        if letter <= "\x7f" or letter in _PUNCTUATION:
            continue
        if "\u3041" <= letter <= "\u30ff":
            syllables += 1
            is_usual = language == "Japanese"
        elif "\uac00" <= letter <= "\ud7a3":
            is_usual = language == "Korean" and _is_common(letter, "euc-kr", first=0xB0, last=0xC8)
        elif "\u4e00" <= letter <= "\u9fff":
            han += 1
            is_usual = False
            if language == "Japanese":
                is_usual = _is_common(letter, "euc-jp", first=0xB0, last=0xCF)
            elif language == "Chinese":
                is_simplified = _is_common(letter, "gb2312", first=0xB0, last=0xD7)
                is_usual = is_simplified or _is_common(letter, "big5", first=0xA4, last=0xC6)
        else:
            if not "\uff01" <= letter <= "\uff5e":
                score += _NOT_IN_WORDS
            continue
        if is_usual:
            score += 1.0
        else:
            score += _FOREIGN_LETTER
    if language == "Japanese" and syllables < han / 10:  # Japanese text always contains kana
        score -= han
    if language == "Chinese":  # unlike Korean, Chinese has no spaces between words
        score += _NOT_IN_WORDS * len(_HAN_AND_SPACE.findall(text))
    return score


@cache
def _is_common(letter: str, encoding: str, first: int, last: int) -> bool:
    """Returns whether a character's first byte is in the range that an encoding uses for frequent characters."""
    try:
        return first <= letter.encode(encoding)[0] <= last
    except UnicodeEncodeError:
        return False


@dataclass
class EncodingEvidence:
    """Evidence about a whole file's encoding, gathered block by block in constant memory."""

    valid: int = 0
    """Number of non-ASCII lines that are valid UTF-8."""
    invalid: int = 0
    """Number of lines that are not UTF-8."""
    sample: bytes = b""
    """The first lines that are not UTF-8."""
    wide: EncodingGuess | None = None
    """Set if the file is UTF-16 or UTF-32; its lines are not counted in that case."""

    def add(self, lines: Sequence[str], faulty_rows: Sequence[int]) -> None:
        """Adds lines of the file; `faulty_rows` are the indices of the lines that are not UTF-8."""
        beyond_ascii = sum(not line.isascii() for line in lines)
        self.valid += beyond_ascii - len(faulty_rows)
        self.invalid += len(faulty_rows)
        for row in faulty_rows:
            if len(self.sample) >= SAMPLE_BYTES:
                break
            self.sample += lines[row].encode("utf-8", "surrogateescape") + b"\n"

    def guess(self) -> EncodingGuess | None:
        """Guesses the file's encoding; None means UTF-8, perhaps with damaged lines."""
        if self.wide is not None:
            return self.wide
        if not self.invalid or self.valid >= self.invalid:
            return None
        guess = guess_encoding(self.sample)
        if self.valid > self.invalid // 100:
            return EncodingGuess(guess.names, False, "some lines are UTF-8 and others are not")
        return guess
