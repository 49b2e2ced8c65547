"""Data sets of the benchmarks: each line of text goes where it should."""

import lzma

import pytest

from bench import datasets
from bench.process import ChildError


@pytest.mark.process
def test_a_packaged_set_is_converted_once(tmp_path):
    prepared = datasets.prepare(datasets.DATASETS["a1a"], tmp_path / "absent", tmp_path)
    assert prepared.n_rows == 1605
    assert prepared.gamma > 0
    written = prepared.train.stat().st_mtime_ns
    again = datasets.prepare(datasets.DATASETS["a1a"], tmp_path / "absent", tmp_path)
    assert again == prepared
    assert again.train.stat().st_mtime_ns == written


@pytest.mark.parametrize(("test", "least", "most"), [(0.3, 50, 130), (77, 77, 77)])
def test_split_keeps_every_row_once_and_relabels(tmp_path, test, least, most):
    lines = [f"{k % 3} {k + 1}:1\n" for k in range(300)]
    with lzma.open(tmp_path / "some.xz", "wt") as file:
        file.writelines(lines)
    folder = tmp_path / "own"
    folder.mkdir()
    train, held_out = datasets.split("some.xz", test=test, positive="2")(tmp_path, folder)
    found = train.read_text().splitlines() + held_out.read_text().splitlines()
    assert sorted(found) == sorted(f"{int(k % 3 == 2)} {k + 1}:1" for k in range(300))
    chosen = held_out.read_text().splitlines()
    assert least <= len(chosen) <= most
    assert 0 < sum(line.startswith("1") for line in chosen) < len(chosen)


def test_text_cut_short_by_its_writer_is_no_data_set(tmp_path):
    writer = ("sh", "-c", "echo 1 1:1; echo 0 1:2; exit 3")
    with pytest.raises(ChildError, match="status 3"):
        datasets.convert(writer, tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []
