import bz2
import gzip
import io
import lzma
import os
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.convert.text import TextInput
from ooc_fw.system.errors import InputError

TEXT = b"".join(b"1 1:%d\n" % i for i in range(2000))
COMPRESSIONS = [bytes, gzip.compress, bz2.compress, lzma.compress]


def read(path) -> bytes:
    with TextInput(path) as text:
        return b"".join(block.text for block in text.blocks())


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_compression_is_told_by_content(tmp_path, compress):
    path = tmp_path / "name_that_says_nothing"
    path.write_bytes(compress(TEXT))
    with TextInput(path) as text:
        assert b"".join(block.text for block in text.blocks()) == TEXT
        assert text.size == text.bytes_read == path.stat().st_size
        assert text.text_bytes == len(TEXT)


@given(
    lines=st.lists(st.text("ab ", max_size=20), max_size=20),
    last_newline=st.booleans(),
    block_bytes=st.integers(1, 50),
)
def test_blocks_are_whole_lines_and_all_of_them(tmp_path_factory, lines, last_newline, block_bytes):
    data = "\n".join(lines).encode() + b"\n" * last_newline
    path = tmp_path_factory.mktemp("text") / "data.txt"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch, TextInput(path) as text:
        patch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", block_bytes)
        blocks = list(text.blocks())
    whole = b"".join(block.text for block in blocks)
    assert whole == data + b"\n" * bool(data and not data.endswith(b"\n"))
    line = 1
    for block in blocks:
        assert block.text.endswith(b"\n")
        assert block.first_line == line
        assert block.n_lines == block.text.count(b"\n")
        line += block.n_lines


def test_byte_order_mark_is_left_out(tmp_path):
    (tmp_path / "data.txt").write_bytes(b"\xef\xbb\xbf1 1:1")
    assert read(tmp_path / "data.txt") == b"1 1:1\n"


@pytest.mark.parametrize("compress", COMPRESSIONS[:2])
def test_standard_input(monkeypatch, compress):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(compress(TEXT))))
    with TextInput("-") as text:
        assert (text.name, text.size) == ("standard input", None)
        assert b"".join(block.text for block in text.blocks()) == TEXT
        assert text.bytes_read == len(TEXT)
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        TextInput("-")


@pytest.mark.parametrize("compress", COMPRESSIONS[1:])
@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:60] + data[90:]])
def test_damaged_file(tmp_path, compress, damage):
    path = tmp_path / "data.gz"
    path.write_bytes(damage(compress(os.urandom(500).hex().encode())))
    with pytest.raises(InputError, match=r"data\.gz is damaged or cut short \(.*\); fetch it"):
        read(path)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"\x89HDF\r\n\x1a\n", "is hdf5, not text"),
        (b"\x93NUMPY", "is npy, not text; name its format"),
        (b"\x28\xb5\x2f\xfd", "is zstd, .* unpack it"),
    ],
)
def test_file_that_is_no_text(tmp_path, head, message):
    (tmp_path / "data").write_bytes(head + bytes(100))
    with pytest.raises(InputError, match=f"data.*{message}"):
        read(tmp_path / "data")


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"cannot be read .Is a directory"):
        TextInput(tmp_path)
    refuse = Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match=r"cannot be read .Permission denied"):
        TextInput(tmp_path / "data")


@pytest.mark.parametrize("compress", COMPRESSIONS[:2])
def test_a_line_without_an_end_is_refused(tmp_path, compress, monkeypatch):
    monkeypatch.setattr("ooc_fw.convert.readers.MAX_ROW_BYTES", 3 << 20)
    monkeypatch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", 1 << 20)
    path = tmp_path / "data.txt"
    path.write_bytes(compress(b"1 1:1\n" + b"7" * (9 << 20)))
    with TextInput(path) as text, pytest.raises(InputError, match=r"data\.txt, line 2: .* 3 MiB"):
        list(text.blocks())
    assert text.text_bytes < 6 << 20
