"""Files of features, and blocks of examples that are more or less than two texts."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nmtkit.core.errors import DataError
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.features import FeaturesFile, require_one_layout
from nmtkit.data.text.reading import SplitReader, read_blocks, read_pairs

NUMBERS = np.arange(24, dtype=np.float16).reshape(4, 3, 2)


def array(path: Path, content: object = NUMBERS) -> str:
    np.save(path, content, allow_pickle=True)  # type: ignore[arg-type]  # damaged ones too
    return str(path)


def text(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def read(path: str) -> list[np.ndarray]:
    file = FeaturesFile(path)
    rows: list[np.ndarray] = []
    while count := file.fill():
        rows += file.take(min(count, 3))[0]
    return rows


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_rows_are_those_of_the_file(tmp_path: Path, dtype: type) -> None:
    numbers = (np.random.default_rng(1).normal(size=(4, 3, 2)) * 100).astype(dtype)
    for rows, wanted in zip(read(array(tmp_path / "a.npy", numbers)), numbers, strict=True):
        assert rows.dtype == dtype
        np.testing.assert_array_equal(rows, wanted)
    flat = read(array(tmp_path / "b.npy", numbers[:, 0]))
    assert [rows.shape for rows in flat] == [(1, 2)] * 4
    np.testing.assert_array_equal(np.concatenate(flat), numbers[:, 0])


def test_an_npz_file_is_read_by_number_or_in_its_order(tmp_path: Path) -> None:
    by_number = {
        str(number): np.full((number + 1, 2), number, np.float32) for number in reversed(range(12))
    }
    np.savez(tmp_path / "a.npz", **by_number)  # type: ignore[arg-type]  # the stub takes the names for options
    assert [float(rows[0, 0]) for rows in read(str(tmp_path / "a.npz"))] == list(range(12))
    np.savez_compressed(
        tmp_path / "b.npz", z=np.zeros((5, 2), np.float16), a=np.ones(2, np.float16)
    )
    assert [rows.tolist() for rows in read(str(tmp_path / "b.npz"))] == [[[0, 0]] * 5, [[1, 1]]]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            np.zeros((4, 2)),
            r"a.npy, example 1: the data type is float64; save features as float16 or float32",
        ),
        (np.zeros((4, 2), np.int32), "the data type is int32"),
        (np.zeros((4, 2), ">f4"), "the data type is >f4"),
        (
            np.zeros(4, np.float32),
            r"a.npy: the array has the shape \(4,\); the array in an .npy file must",
        ),
        (np.zeros((4, 0, 2), np.float32), r"a.npy, example 1: the array has the shape \(0, 2\)"),
        (np.array([{}, 1], object), r"a.npy: cannot be read as .npy or .npz: .*Python objects"),
    ],
    ids=["float64", "integers", "big-endian", "one-axis", "no-rows", "objects"],
)
def test_other_arrays_are_refused(tmp_path: Path, content: object, fault: str) -> None:
    files = SplitFiles.model_validate({"features": array(tmp_path / "a.npy", content)})
    with pytest.raises(DataError, match=fault):
        list(read_blocks("train", files))


def test_files_that_are_damaged_or_no_arrays(tmp_path: Path) -> None:
    whole = Path(array(tmp_path / "a.npy")).read_bytes()
    np.savez(tmp_path / "b.npz", NUMBERS[0])
    packed = bytearray((tmp_path / "b.npz").read_bytes())
    packed[packed.index(NUMBERS[0].tobytes())] ^= 1
    for content in (whole[:-1], b"", b"one\n", None, packed[:-30]):
        path = tmp_path / "c.npy"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(DataError, match=r"c.npy: cannot be read as .npy or .npz"):
            list(read_blocks("train", SplitFiles(features=[str(path)])))
    np.savez_compressed(tmp_path / "e.npz", np.arange(4000, dtype=np.float32).reshape(-1, 2))
    whole = (tmp_path / "e.npz").read_bytes()
    for at in range(60, 1000, 31):
        (tmp_path / "e.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with pytest.raises(DataError, match=r"e.npz.*cannot be read"):
            list(read_blocks("train", SplitFiles(features=[str(tmp_path / "e.npz")])))
    (tmp_path / "d.npz").write_bytes(packed)
    with pytest.raises(DataError, match=r"d.npz.*cannot be read"):
        list(read_blocks("train", SplitFiles(features=[str(tmp_path / "d.npz")])))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_told_with_its_row(tmp_path: Path, number: float) -> None:
    numbers = NUMBERS.copy()
    numbers[2, 1, 0] = number
    rows = FeaturesFile(array(tmp_path / "a.npy", numbers)).take(4)[0]
    assert rows[1].tolist() == NUMBERS[1].tolist()
    with pytest.raises(DataError, match=r"a.npy, example 3, row 2 contains NaN or infinity"):
        rows[2]


def test_all_files_are_alike(tmp_path: Path) -> None:
    narrow, wide, single = (array(tmp_path / name) for name in ("a.npy", "b.npy", "c.npy"))
    require_one_layout([SplitFiles(features=[narrow, wide]), SplitFiles(features=[single])])
    array(Path(wide), np.zeros((1, 3), np.float16))
    array(Path(single), NUMBERS.astype(np.float32))
    told = re.escape(
        f"{narrow} has rows of 2 float16 values, but {wide} has rows of 3 float16 values"
    )
    with pytest.raises(DataError, match=told):
        require_one_layout([SplitFiles(features=[narrow, wide])])
    with pytest.raises(DataError, match=r"float16 values, but .* has rows of 2 float32 values"):
        require_one_layout([SplitFiles(features=[narrow]), SplitFiles(features=[single])])
    np.savez(tmp_path / "d.npz", NUMBERS[0], NUMBERS[0, :, :1])
    rows = FeaturesFile(str(tmp_path / "d.npz")).take(2)[0]
    with pytest.raises(
        DataError,
        match="example 2 has rows of 1 float16 values, but earlier examples have rows of 2",
    ):
        rows[1]


# Examples of other columns than two texts.


def test_captions_with_their_features(tmp_path: Path) -> None:
    features = [array(tmp_path / "a.npy", NUMBERS[:3]), array(tmp_path / "b.npy", NUMBERS[3:])]
    captions = [text(tmp_path / "a", "a cat", "a dog", "a man"), text(tmp_path / "b", "a cow")]
    files = SplitFiles(features=features, tgt=captions)
    assert files.columns == ("tgt", "features")
    examples = list(read_pairs(files))
    assert [(one.src, one.tgt, one.line, one.file) for one in examples] == [
        *(
            ("", caption, line, 0)
            for line, caption in enumerate(["a cat", "a dog", "a man"], start=1)
        ),
        ("", "a cow", 4, 1),
    ]
    for one, wanted in zip(examples, NUMBERS, strict=True):
        assert one.features is not None
        np.testing.assert_array_equal(one.features, wanted)
    alone = list(read_pairs(SplitFiles(features=features)))
    assert [(one.src, one.tgt, one.line) for one in alone] == [
        ("", None, line) for line in range(1, 5)
    ]
    assert alone[3].features is not None
    assert alone[3].features.tolist() == NUMBERS[3].tolist()


@pytest.mark.parametrize("count", [3, 5])
def test_features_and_text_of_different_lengths(tmp_path: Path, count: int) -> None:
    files = SplitFiles(
        features=[array(tmp_path / "a.npy")],
        tgt=[text(tmp_path / "a", *"abcde"[:count])],
        labels=[],
    )
    with pytest.raises(DataError, match=rf"a has {count} lines, but .*a.npy has 4"):
        list(read_blocks("train", files))


def test_texts_with_labels(tmp_path: Path) -> None:
    files = SplitFiles(
        src=[text(tmp_path / "a", "good", "bad")], labels=[text(tmp_path / "b", "1", "0")]
    )
    assert [(one.src, one.tgt, one.labels) for one in read_pairs(files)] == [
        ("good", None, "1"),
        ("bad", None, "0"),
    ]
    text(tmp_path / "b", "1")
    with pytest.raises(
        DataError, match=r"a has 2 lines, but .*b has 1: line n of one file must belong"
    ):
        list(read_pairs(files))
    (tmp_path / "b").write_bytes(b"1\n\xff\n")
    with pytest.raises(DataError, match="b, line 2: not valid UTF-8"):
        list(read_pairs(files))


def test_json_lines_of_any_columns(tmp_path: Path) -> None:
    path = text(
        tmp_path / "a.jsonl",
        '{"text": "good", "tags": ["A", "B"], "x": 1}',
        '{"text": "bad", "tags": "A"}',
    )
    files = SplitFiles(src=[f"{path}#text"], labels=[f"{path}#tags"])
    assert files.columns == ("src", "labels")
    assert [(one.src, one.tgt, one.labels) for one in read_pairs(files)] == [
        ("good", None, "A B"),
        ("bad", None, "A"),
    ]
    only = SplitFiles(jsonl=[path], src_field="", tgt_field="text")
    assert [(one.src, one.tgt, one.labels) for one in read_pairs(only)] == [
        ("", "good", None),
        ("", "bad", None),
    ]
    with pytest.raises(
        DataError, match=r"line 1: there is no field 'label'.*specify a different one as FILE#FIELD"
    ):
        list(read_pairs(files.model_copy(update={"labels": [f"{path}#label"]})))


def test_a_part_of_a_block(tmp_path: Path) -> None:
    files = SplitFiles(features=[array(tmp_path / "a.npy")], tgt=[text(tmp_path / "a", *"abcd")])
    (block,) = SplitReader("train", files)
    assert isinstance(block, Block)
    part = block.slice(1, 3)
    assert part.texts == {"tgt": ["b", "c"]}
    assert [
        one.features.tolist() for one in part.examples() if one.features is not None
    ] == NUMBERS[1:3].tolist()
    assert [one.line for one in part.examples()] == [2, 3]


def test_what_makes_two_examples_equal(tmp_path: Path) -> None:
    """Texts, and labels beside them; features never."""
    lines = text(tmp_path / "a", "x", "x", "x")
    labelled = SplitFiles(src=[lines], labels=[text(tmp_path / "b", "1", "2", "1")])
    pictured = SplitFiles(tgt=[lines], features=[array(tmp_path / "a.npy", NUMBERS[:3])])
    for files, different in ((labelled, 2), (pictured, 3), (SplitFiles(tgt=[lines]), 1)):
        (block,) = read_blocks("train", files)
        assert len({*block.hashes().pairs.tolist()}) == different
    (other,) = read_blocks("test", pictured)
    (block,) = read_blocks("train", pictured)
    assert not {*block.hashes().src.tolist()} & {*other.hashes().src.tolist()}


def test_a_picture_is_rows_of_pixels(tmp_path: Path) -> None:
    """From an array, from an archive of one array or of one for each, and from files whose paths are listed."""
    pixels = np.random.default_rng(1).integers(0, 256, (4, 3, 5, 3), dtype=np.uint8)
    np.savez_compressed(tmp_path / "b.npz", images=pixels)
    np.savez(tmp_path / "c.npz", *pixels)
    for number, one in enumerate(pixels):
        Image.fromarray(one).save(tmp_path / f"{number}.png")
    listed = text(tmp_path / "d.txt", "0.png", "1.png", str(tmp_path / "2.png"), "3.png")
    for path in (
        array(tmp_path / "a.npy", pixels),
        str(tmp_path / "b.npz"),
        str(tmp_path / "c.npz"),
        listed,
    ):
        rows = read(path)
        assert {one.dtype for one in rows} == {np.dtype(np.uint8)}
        np.testing.assert_array_equal(np.array(rows), pixels.reshape(4, 3, 15))
    Image.fromarray(pixels[0, :, :3]).save(tmp_path / "1.png")
    with pytest.raises(
        DataError,
        match=r"d.txt, example 2 has images of 3 x 3 pixels, but earlier examples have images of 3 x 5",
    ):
        read(listed)
    (tmp_path / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"d.txt, example 2: cannot be read: .*1.png"):
        read(listed)
    with pytest.raises(
        DataError, match=r"uint8; save features as float16 or float32, and images as uint8"
    ):
        list(read_blocks("train", SplitFiles(features=[array(tmp_path / "e.npy", pixels[0])])))


@pytest.mark.parametrize("content", [None, b"no picture"])
def test_a_list_whose_first_picture_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "0.png").write_bytes(content)
    listed = text(tmp_path / "d.txt", "0.png")
    with pytest.raises(DataError, match=r"d.txt, example 1: cannot be read: .*0.png") as refused:
        list(read_blocks("train", SplitFiles(features=[listed])))
    assert ".npy" not in str(refused.value)


def test_a_list_of_pictures_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_bytes(b"a.png\n\xff\xfe\n")
    with pytest.raises(DataError, match=r"d.txt.*line 2") as refused:
        list(read_blocks("train", SplitFiles(features=[str(tmp_path / "d.txt")])))
    assert ".npy" not in str(refused.value)


def test_shapes_of_pictures_are_explained(tmp_path: Path) -> None:
    pixels = np.zeros((2, 1, 3, 5, 3), np.uint8)
    with pytest.raises(DataError, match=r"uint8 arrays of shape \(examples, height, width, 3\)"):
        list(read_blocks("train", SplitFiles(features=[array(tmp_path / "a.npy", pixels)])))


def test_an_image_of_height_0_is_refused(tmp_path: Path) -> None:
    images = [np.zeros((2, 5, 3), np.uint8), np.zeros((0, 5, 3), np.uint8)]
    np.savez(tmp_path / "a.npz", *images)
    file = FeaturesFile(str(tmp_path / "a.npz"))
    file.read(0)
    with pytest.raises(
        DataError, match=r"a.npz, example 2: .* \(0, 5, 3\); .* no dimension may be 0"
    ):
        file.read(1)


def test_a_picture_in_place_of_a_list_of_them(tmp_path: Path) -> None:
    """Which numpy takes for pickled objects, and advises to load unsafely."""
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(
        DataError, match=r"a.png: .* or .npz; for images, use a .txt file"
    ) as refused:
        list(read_pairs(SplitFiles(features=[str(tmp_path / "a.png")])))
    assert "pickle" not in str(refused.value)
