"""Bad input of every command: status 2, one sentence, no file written and none changed."""

import shutil

import numpy as np
import pytest

from ooc_fw.cli.main import main

CASES = """
 => the following arguments are required: COMMAND; see ooc-fw --help
fit => invalid choice: 'fit'
train => required: DATA; see ooc-fw train --help
train d.h5 --speed => arguments: --speed; see ooc-fw --help
--speed train d.h5 => unrecognized arguments: --speed; see ooc-fw --help
train d.h5 --thread=2 => unrecognized arguments: --thread=2; see
train d.h5 --quiet --verbose => not allowed with
convert d.txt => convert needs IN and OUT.h5
convert d.txt d.h5 --dense --sparse => not allowed with
convert d.txt d.h5 --seed -1 => --seed: must be a whole number
convert d.txt d.h5 --scale x => must be one of none, minmax, maxabs
convert t.csv x.h5 --label label --labels-as 4=2 => has the label 3
convert t.csv x.h5 --label label --labels-as normal. => must be LABEL=NEW
convert t.csv x.h5 --label label --labels-as a=1,a=2 => each label once
convert t.csv x.h5 --label label --task regression --labels-as *=1 => for classes
train d.h5 --labels-as *=1 => unrecognized arguments: --labels-as
verify X.npy => has no checksums to compare with
verify none.h5 => none.h5
verify d.txt => is LIBSVM text
info t.csv --label z => lacks column 'z'
info first.csv => holds numbers
info empty.h5 => empty.h5
info zero.txt => --zero-based
info parts => parts does not exist; check the name
help nothing => the topics are api, cells, changes

train d.h5 --x-name Z => has no 'Z'
train d.h5 --kernel cubic => kernel must be one of rbf, linear, poly, laplacian, tani
train d.h5 --method newton => 'newton'
train d.h5 --lmo half => --lmo: must be one of auto, full, sampled
train d.h5 --C nan => --C: must be a positive number, not 'nan'
train d.h5 --gamma 0 => --gamma: must be auto, scale or a positive number, not '0'
train d.h5 --seed 999999999999999999999 => of at least 0, at most 9.22337e+18
train d.h5 --memory plenty => --memory: 'plenty' is no size
train d.h5 --max-iter -1 => --max-iter: must be a whole number of at least 0
train d.h5 --class-weight 1 => --class-weight: must be class weights LABEL=W,... or balanced
train d.h5 --class-weight 3=1, => must be class weights
train d.h5 --class-weight 3=x => must be class weights
train d.h5 --class-weight 5=1 => a weight for 5, which is no label
train d.h5 --class-weight 3=0 => the weight of class 3 must be a positive number
train d.h5 --class-weight spam=2 => a weight for spam, which is no label
train d.h5 --max-time soon => --max-time: must be a positive number of seconds, not 'soon'
train d.h5 --checkpoint-every m => must be a positive number of seconds
train d.h5 --checkpoint-every 5s => --checkpoint-every goes with --checkpoint FILE only
train d.h5 --resume none.ckpt => there is no model file none.ckpt
train d.h5 --resume d.h5 => it holds data
train d.h5 -o x.h5 --checkpoint x.h5 => would both be
train d.h5 --landmarks 5 => --landmarks: must be auto, none or a whole number of at least 20
train d.h5 --landmarks 40 --exact => --landmarks 40 and --exact contradict each other
train d.h5 --landmarks 40 --method swap => --landmarks 40 and --method contradict
train d.h5 --landmarks 40 --stopping meb => --landmarks 40 and --stopping contradict
train d.h5 --keep 30 => --keep goes with --stream only
train d.h5 --zero-based => --zero-based goes with --stream only
train - => standard input goes with --stream only
train d.h5 --task novelty --probability => --probability has no meaning for --task novelty
train d.h5 --task novelty --class-weight balanced => --class-weight has no meaning
train d.h5 --contamination 0.1 => --contamination goes with --task novelty
train d.h5 --ordinary 3 => --ordinary goes with --task novelty
train d.h5 --task novelty --ordinary 8 => has the label 8, or all have
train d.h5 --task novelty --contamination 0.7 => must be a positive number, at most 0.5
train d.h5 --task clustering => --task: must be one of classification, novelty
train d.h5 --memory 10MiB => a limit that would do is
train d.h5 --dask everywhere => must be threads, processes or the address
train none.h5 => none.h5
train empty.h5 => empty.h5
train d.txt => ooc-fw convert
train X.npy --labels one.npy => rows of two classes

train --stream - => - is no file here, so the output has no default name; give -o
train --stream d.txt -o d.txt => would replace the input
train --stream d.txt --labels y.npy => --labels has no part in --stream of LIBSVM text
train --stream d.txt --x-name Z => --x-name has no part in
train --stream nowhere => nowhere does not exist
train --stream d.txt --stopping meb --kernel poly => meb
train --stream d.txt --method fw => --method has no part in
train --stream d.txt --probability => --probability has no part in
train --stream d.txt --dask threads => --dask has no part in

tune d.h5 --metric f1 => accuracy or balanced_accuracy or auc
tune d.h5 -o d.h5 => would replace the input
tune d.h5 --C 0,1 => --C: must be a positive number, not '0'
tune d.h5 --C=many => --C

predict m.h5 d.h5 --json => --json needs -o FILE
predict m.h5 d.h5 -o m.h5 => would replace the input
predict m.h5 d.h5 -o p.h5 => p.h5: predictions are text; give -o FILE.csv
predict m.h5 d.h5 d.h5 => unrecognized arguments: d.h5; see ooc-fw
train d.h5 d.h5 => unrecognized arguments: d.h5; see ooc-fw
certify m.h5 d.h5 --exact-kernel => arguments: --exact-kernel
convert d.txt x.h5 -o y.h5 => unrecognized arguments: -o
predict m.h5 d.h5 --probability -o t.csv => ooc-fw train --probability
predict m.h5 d.h5 --threshold=nan => --threshold
predict m.h5 other.h5 => other.h5 is scaled (maxabs) in another way than the model's
predict m.h5 wide.npy => wide.npy has 9 features but the model was trained on 4
predict m.h5 empty.h5 => empty.h5
predict m.h5 empty.txt => empty.txt
predict m.h5 none.h5 => none.h5
predict m.h5 t.csv => ooc-fw convert t.csv t.h5 --like TRAIN.h5
predict m.h5 m.h5 => m.h5 has no 'X'
predict m.h5 d.txt --dask threads => --dask is not for tables and text such as d.txt
predict none.h5 d.h5 => none.h5
predict cut.h5 d.h5 => cut.h5
predict d.txt d.h5 => d.txt
predict d.h5 d.h5 => ooc-fw train

evaluate m.h5 d.h5 --threshold=nan => --threshold
evaluate m.h5 d.h5 --positive attack => --positive attack: m.h5 knows -7 and 3
evaluate m.h5 X.npy => X.npy has no labels
evaluate m.h5 X.npy --labels words.npy => a class of the model (known: -7, 3; found: no, yes)
evaluate m.h5 d.h5 --figure r.gif => has to end in .png, .svg or .pdf, not r.gif
evaluate m.h5 d.h5 --figure none/r.png => none/r.png cannot be written
certify m.h5 d.h5 --tol x => --tol: must be a positive number, not 'x'
certify m.h5 t.csv => t.csv is a table
importance m.h5 d.h5 --rows 0 => --rows
importance m.h5 d.h5 --top some => --top
importance m.h5 d.h5 --figure x.doc => .png
importance m.h5 d.txt => ooc-fw convert
plot d.h5 -o x.png => it has no events of a training run
plot log.jsonl -o no/x.png => cannot be written (No such file
plot log.jsonl -o x.jpg => has to end in .png, .svg or .pdf
plot log.jsonl --panels gap,size => --panels knows gap, support

split d.h5 a.h5 b.h5 --test-share 1 => --test-share: must be a positive number, at most 0.999999
split d.h5 a.h5 b.h5 --test-share 0.0001 => leaves one part empty; choose another share
"""
ARRAYS = ("zip", "empty", "text", "huge", "bytes", "matrix", "objects")


@pytest.fixture(scope="module")
def folder(data_file, text_file, model_file, table, tmp_path_factory):
    """The files that the cases name."""
    folder = tmp_path_factory.mktemp("refusals")
    for path, name in ((data_file, "d.h5"), (text_file, "d.txt"), (model_file, "m.h5")):
        shutil.copy(path, folder / name)
    texts = {"t.csv": "age,city,label\n1,2,3\n", "empty.h5": "", "empty.txt": ""}
    texts |= {"first.csv": "0,red,0\n1,red,0\n", "zero.txt": "1 0:1\n"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "cut.h5").write_bytes(model_file.read_bytes()[:-100])
    arrays = {
        "words": np.where(table.y > 0, "yes", "no"),
        "X": table.X,
        "y": table.y,
        "one": np.full(200, -7.0),
        "half": [0.5],
    }
    for name, array in (arrays | {"wide": np.ones((2, 9), dtype=np.float32)}).items():
        np.save(folder / f"{name}.npy", array)
    log = str(folder / "log.jsonl")
    train = ["train", str(data_file), "-o", str(folder / "other-model.h5"), "--quiet"]
    assert main([*train, "--log", log]) == 0
    convert = ["convert", str(text_file), str(folder / "other.h5"), "--scale", "maxabs", "--quiet"]
    assert main(convert) == 0
    return folder


@pytest.mark.parametrize("case", [line for line in CASES.splitlines() if line])
def test_one_sentence_and_nothing_written(ooc_fw, folder, monkeypatch, case):
    monkeypatch.chdir(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    command, message = case.split(" => ")
    ooc_fw(*command.split()).assert_refused(message)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_that_are_no_lists(ooc_fw, data_file, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.npy"
    if kind == "zip":
        with path.open("wb") as file:
            np.savez(file, rows=np.arange(3))
    elif kind in ("empty", "text"):
        path.write_text("1\n2\n" * (kind == "text"))
    elif kind in ("huge", "bytes"):
        with path.open("wb") as file:
            descr = "<i8" if kind == "huge" else "|V0"
            header = {"descr": descr, "fortran_order": False, "shape": (1 << 60,)}
            np.lib.format.write_array_header_1_0(file, header)
    else:
        array = np.ones((2, 2)) if kind == "matrix" else np.array([{}, {}])
        np.save(path, array, allow_pickle=True)
    ooc_fw("train", data_file, "-o", "a.h5", "--labels", path).assert_refused(str(path))
