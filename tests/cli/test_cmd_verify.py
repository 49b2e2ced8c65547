import json
import shutil

import h5py
import pytest


@pytest.fixture
def damaged(data_file, tmp_path):
    """A converted file in which a bit of /X was changed."""
    path = shutil.copy(data_file, tmp_path / "bad.h5")
    with h5py.File(path) as file:
        place = file["X"].id.get_chunk_info(0).byte_offset
    with open(path, "r+b") as raw:
        raw.seek(place)
        raw.write(b"\x7f")
    return path


def test_intact(ooc_fw, data_file):
    assert ooc_fw("verify", data_file) == (0, f"{data_file}: intact\n", "")
    expected = {"file": str(data_file), "intact": True, "damage": []}
    assert ooc_fw("verify", data_file, "--json").json() == expected


def test_damage(ooc_fw, damaged):
    outcome = ooc_fw("verify", damaged)
    assert (outcome.status, outcome.out) == (1, f"{damaged} is damaged\n")
    assert outcome.err == (
        f"ooc-fw: {damaged} is damaged: X, rows 0 to 199 do not match their checksum; "
        f"restore a copy or convert the data again\n"
    )
    result = json.loads(ooc_fw("verify", damaged, "--json").out)
    assert not result["intact"]
    assert f"ooc-fw: {result['damage'][0]}\n" == outcome.err


def test_damage_is_met_by_the_other_commands(ooc_fw, damaged, model_file, tmp_path):
    for arguments in (
        ("train", damaged, "-o", tmp_path / "m.h5", "--quiet"),
        ("predict", model_file, damaged),
        ("evaluate", model_file, damaged),
    ):
        ooc_fw(*arguments).assert_refused("bad.h5 is damaged: X, rows 0 to 199")
    assert not (tmp_path / "m.h5").exists()
    # A support vector that changed is noticed before the sweep.
    ooc_fw("certify", model_file, damaged).assert_refused("bad.h5")


def test_a_file_cut_short(ooc_fw, damaged):
    with open(damaged, "r+b") as file:
        file.truncate(3000)
    outcome = ooc_fw("verify", damaged, "--json")
    assert outcome.status == 1
    assert "bad.h5 is damaged" in outcome.err
    assert not json.loads(outcome.out)["intact"]
