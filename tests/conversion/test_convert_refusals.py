"""What cannot be converted: one sentence names the input and the place, and nothing is written."""

import bz2
import gzip
import lzma

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ooc_fw import convert
from ooc_fw.system.errors import InputError
from tests.conversion.converted import Y, write_npy, write_table

# Training files of the option `like`, made when they are named.
TRAINED = {
    "table.h5": ("a,b,y\n1,2,0\n3,4,1\n", Y),
    "bare.h5": ("5,1.5,a\n6,2.5,b\n", {"header": False, "label": "2"}),
    "text.h5": ("1 1:1 2:2\n2 1:3\n", {"log1p": True}),
}


def parts(second):
    """A folder of two Parquet files; in the first, x is 1 and 3, and y is 1 and 2."""

    def write(folder):
        (folder / "parts").mkdir()
        write_table(folder / "parts" / "a.parquet", {"x": [1.0, 3.0], "y": [1, 2]})
        write_table(folder / "parts" / "b.parquet", second)
        return "parts"

    return write


def with_log(name):
    """A table of Delta, Hudi or Iceberg, which holds removed rows."""

    def write(folder):
        (folder / "table" / name).mkdir(parents=True)
        (folder / "table" / "data").mkdir()
        write_table(folder / "table" / "data" / "1.parquet", {"a": [0.0, 1.0], "y": [0, 1]})
        return "table"

    return write


def spoilt(folder):
    """A file of Parquet whose first page is zeros."""
    path = write_table(folder / "t.parquet", {"a": np.arange(99.0), "y": np.arange(99) % 2})
    path.write_bytes(b"PAR1" + bytes(200) + path.read_bytes()[204:])
    return path.name


def flipped(folder):
    """A file of Parquet with checksums of its pages, and one other bit in a number."""
    path = folder / "t.parquet"
    table = pa.table({"a": np.arange(99.0), "y": np.arange(99) % 2})
    parquet.write_table(
        table, path, compression="none", use_dictionary=False, write_page_checksum=True
    )
    content = bytearray(path.read_bytes())
    content[content.index(np.float64(50).tobytes()) + 5] ^= 1
    path.write_bytes(content)
    return path.name


CSV = {**Y, "format": "csv"}
TRAIN = "age,colour,size,buys\n30,red,1.5,yes\n40,blue,2.5,no\n50,red,0,no\n"
BUYS = {"label": "buys"}
MANY = "".join(f"w{i},0\n" for i in range(5000))
ENCODED = {"target_encode": ["c"], **Y}
WORDS = "c,y\n" + "p,no\nr,yes\n" * 9
SUMS = "c,y\n" + "".join(f"w{k % 1800},v{k}\n" for k in range(4000))
STAMPS = pa.table({"t": pa.array([1, 2], pa.timestamp("s")), "y": [0, 1]})
TIMES = "t,y\n2024-01-01T10:00+02:00,0\n,1\nsoon,1\n"
NOISE = np.random.default_rng(0).bytes(500).hex().encode()

TEXT = [
    ("\n# nothing\n", {}, "holds no rows"),
    ("1\n2\n", {}, "holds labels only, no features"),
    ("1 1:1\n1 1:x\n", {}, r"data, line 2: the value of '1:x'"),
    ("1 2000000000:1", {}, "has a feature index of 2000000000, and the limit is 67108864"),
    ("\n".join(f"{i} 1:1" for i in range(10001)), {}, "more than 10000 different labels"),
    ("1 1:5 40:1\n2 1:6\n", {"scale": "minmax", "dense": False}, "cannot stay sparse; use --scale"),
    *(
        (magic + bytes(100), {}, rf"data is {name}, .* unpack it")
        for magic, name in (
            (b"\x28\xb5\x2f\xfd", "zstd"),
            (b"\x04\x22\x4d\x18", "lz4"),
            (b"\x1f\x9d\x90", r"compress \(\.Z\)"),
            (b"\x5d\0\0\x80\0", "lzma"),
            (b"PK\3\4", "zip"),
        )
    ),
    *(
        (pack("a,y\n1,0\n2,1\n".encode(code)), how, "iconv -f utf-16 -t utf-8")
        for pack in (bytes, gzip.compress)
        for code in ("utf-16", "utf-16-be")
        for how in ({}, CSV)
    ),
    *(
        (pack(NOISE[:400]) + end, CSV | {"label": "0", "header": False}, "data is damaged or cut")
        for pack in (gzip.compress, bz2.compress, lzma.compress)
        for end in (b"more", b"\0\0more", pack(NOISE)[:-1], bytes(9) + pack(NOISE)[9:])
    ),
    *(
        (data[:60] + data[90:], {}, r"data is damaged or cut short \(.*\); fetch it")
        for data in (gzip.compress(NOISE, mtime=0), bz2.compress(NOISE), lzma.compress(NOISE))
    ),
]
COLUMNS = [
    (
        TRAIN,
        CSV | {"label": None},
        r"is a table: name the column .* --label \(it has 'age', 'colour'",
    ),
    (TRAIN, {"label": "4"}, "lacks column '4', which --label needs; it has 'age'"),
    (TRAIN, {**BUYS, "drop": ["age", "colour", "size"]}, "has no column left"),
    (TRAIN, {**BUYS, "one_hot": ["buys"]}, "named by --one-hot and by --label"),
    ("a,a,y\n1,2,0\n", Y, r"has two columns of one name"),
    ("a,y\n1,0\n", {**Y, "labels": "y.npy"}, "--label and --labels contradict each other"),
    ("a,y\n1,0\n", {**CSV, "label": None, "labels": "y.npy"}, "in a column: name it with --label"),
    ("a,y\n1,0\n", {**Y, "delimiter": "ab"}, "must be one ASCII character, not 'ab'"),
    ("a,y\n1,0\n", {**Y, "zero_based": True}, "is csv, and --zero-based and --n-features are for"),
    ("1 1:1\n", {**Y, "format": "libsvm"}, "is libsvm, and --label, .* are for other formats"),
    ("5.1,3.5,setosa\n1,1,1\n", CSV | {"label": "0"}, "--no-header if it is a row"),
]
NO_NAMES = {**CSV, "label": "2", "names": "nosuch.txt"}
BARE = {**CSV, "label": "2", "header": False}
CELLS = [
    ("1,tcp,0\n", BARE, "line 1: .* 'tcp'; correct .* --one-hot 1"),
    ("1,2\n", NO_NAMES, "1 names are given .'nosuch.txt'.; .* a file that has them"),
    ("a,b,y\n", BARE, "line 1: .* 'a'; delete the line if it nam"),
    ("a,b,y\n1,x,0\n", {**CSV, "like": "table.h5"}, "line 2: .* 'x'; correct or delete the row$"),
    ("a,y\n1,0\n\n,1\n", Y, r"line 4: .* column 'a' is missing; .* --impute mean"),
    *(
        (f"w,a,y\n1,1,0\n{weight},2,1\n", {**Y, "weight": "w"}, f"line 3: the weight is {shown}")
        for weight, shown in (("-1", "-1"), ("", "nan"), ("inf", "inf"))
    ),
    ("w,a,y\n1,1,0\n", {**Y, "weight": "w", "one_hot": ["w"]}, "named by --one-hot and by --wei"),
    ("w,a,y\n1,1,0\n", {**Y, "weight": "v"}, "lacks column 'v', which --weight needs"),
    ("1 1:1\n", {"weight": "w", "format": "libsvm"}, "is libsvm, and .* --weight are for other"),
    ("a,y\n1,0\n2,N/A\n3,1\n", Y, r"line 3: the label is missing.*--missing-labels drop"),
    ("a,y\n1,0\n1,inf\n", {**Y, "task": "regression"}, "line 3: the label .* infinite"),
    ("a,b,y\n1,1,0\n1,-1,0\n", {**Y, "log1p": True}, "line 3: .* 'b' is -1: .* log1p"),
    ("a,c,y\n,x,0\n", {**Y, "impute": "mean", "drop": ["c"]}, "holds no number at"),
    ("a,y\n1,0\n1,0,2\n", Y, "line 3: it has 3 cells for 2 columns"),
    ('a,y\n1,0\n1,"0\n3\n', Y, r"line 3: .*; a quoted cell ends in a quote"),
    (b"a,b,y\r1,2,x\r3,4,z\r", Y, r"line 1: a carriage return stands alone"),
    (b"a,y\n1,caf\xe9\n", Y, "line 2: it is not UTF-8 text; convert it"),
    ("", Y, r"is empty"),
    (TIMES, {**Y, "dates": ["t"], "impute": "mean"}, "line 4: .* 't' is not a date"),
]
MANY_WORDS = [
    ("a,y\n" + MANY, {**Y, "one_hot": ["a"]}, "'a' of .* than 4096 different words, .* --drop"),
    (SUMS, ENCODED, "'c' has too many words for --target-encode, which takes .* words x classes"),
    (WORDS.replace("yes", "no"), ENCODED, "needs rows of two classes, or --task regression"),
]
FILES = [
    (parts({"y": [1, 2]}), Y, r"b\.parquet lacks column 'x' of the other files"),
    (parts({"x": [3.0, np.inf], "y": [1, 2]}), Y, r"b\.parquet, row 1: .*x"),
    *(
        (with_log(log), {**Y, "format": "parquet"}, "is a table of Delta, .*export a snapshot")
        for log in ("_delta_log", ".hoodie", "metadata")
    ),
    (spoilt, Y, r"t\.parquet is damaged after row 0"),
    (flipped, Y, r"t\.parquet is damaged after row 0 .*checksum"),
    (STAMPS, Y, r"column 't' .* holds dates, not numbers; .*--drop t"),
    (pa.table({"v": [["a"], ["b"]], "y": [0, 1]}), Y, r"'v' of .* holds list<.*--drop v"),
    (np.eye(2), {}, r"has no labels; name them \(--label\), or give a file"),
    (np.eye(2), {"labels": "y.npy"}, "label of row 1 of .* is not UTF-8"),
    (np.eye(2), {"one_hot": ["a"]}, "is npy, and --one-hot, .* are for other formats"),
    (["table.h5"], {"like": "table.h5"}, "converted file already: .*convert its input"),
]
OF_LIKE = [
    ("1 1:1\n", {"like": "x.h5", "log1p": True}, r"comes from x\.h5 here; leave it out"),
    ("1 1:1\n", {"like": "data"}, r"data is LIBSVM text; convert it first"),
    ("y,a,b\n1,5,6\n", {"like": "text.h5", "format": "csv"}, "does not say how the columns"),
    ("1 1:1\n1 1:-1\n", {"like": "text.h5"}, "line 2: .* no log1p"),
    ("9,5,1.5,a\n", {"like": "bare.h5"}, r"has 4 columns and .*bare\.h5 has 3"),
]
OTHERS = [
    ([], {}, "no input given"),
    (["other.txt", "other.csv"], {}, r"several formats \(libsvm, csv\)"),
    (["some", "more"], Y, r"more has column 'z', which some lacks; .* --drop for what"),
    (["some", "bare"], Y, r"bare lacks column 'y'"),
    (["mixed"], Y, r"mixed is a folder of CSV files, and 'b\.zst' in it is none"),
    (["-"], {**Y, "format": "parquet"}, "parquet cannot be read from standard input"),
]
OTHER_FILES = {"old.txt": "1 1:1\n-1 1:2\n", "other.txt": "1 1:1\n", "other.csv": "a,y\n1,0\n"}
OTHER_FILES |= {"some": "a,y\n1,0\n", "more": "z,y,a\n1,1,0\n", "bare": "a\n3\n"}
OTHER_FILES |= {"mixed/a.csv": "a,y\n1,0\n", "mixed/b.zst": ""}


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shown(value):
    # Packed bytes hold the time, and so differ between processes.
    return "" if isinstance(value, dict | bytes) or callable(value) else repr(value)[:40]


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [*TEXT, *COLUMNS, *CELLS, *MANY_WORDS, *FILES, *OF_LIKE, *OTHERS],
    ids=shown,
)
def test_what_cannot_be_converted(tmp_path, monkeypatch, given, options, message):
    """Text, a table of Parquet, an array, names of inputs, or a function that writes one."""
    monkeypatch.chdir(tmp_path)
    for name, text in OTHER_FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    convert(["old.txt"], "out.h5")
    write_npy(tmp_path / "y.npy", np.array([b"caf\xc3\xa9", b"caf\xe9"]))
    if options.get("like") in TRAINED:
        text, how = TRAINED[options["like"]]
        (tmp_path / "training").write_text(text)
        convert(["training"], options["like"], **how)
    if isinstance(given, str | bytes):
        (tmp_path / "data").write_bytes(given if isinstance(given, bytes) else given.encode())
        given = ["data"]
    elif isinstance(given, pa.Table):
        given = [write_table(tmp_path / "t.parquet", given)]
    elif isinstance(given, np.ndarray):
        given = [write_npy(tmp_path / "x.npy", given)]
    elif callable(given):
        given = [given(tmp_path)]
    before = files_in(tmp_path)
    with pytest.raises(InputError, match=message):
        convert(given, "out.h5", **options)
    assert files_in(tmp_path) == before
