"""Bad input of every command: status 2, one sentence, no file written and none changed.

A line is a command, which names files of the folder in ``conftest.py``, and after each ``=>`` words
that the sentence holds. A name after ``<`` is that of a file on standard input.
"""

import re

import pytest

from ooc_fw.cli.commands import COMMANDS, build_parser

CASES = """
 => the following arguments are required: COMMAND; see ooc-fw --help
fit => invalid choice: 'fit'
train => required: DATA; see ooc-fw train --help
train d.h5 --speed => arguments: --speed; see ooc-fw train --help
--speed train d.h5 => unrecognized arguments: --speed; see ooc-fw --help
train d.h5 --thread=2 => unrecognized arguments: --thread=2; see
train d.h5 --quiet --verbose => not allowed with
help nothing => there is no guide 'nothing'; the topics are

convert d.txt => convert needs IN and OUT.h5
convert d.txt new.h5 --dense --sparse => not allowed with
convert d.txt new.h5 --n-features 67108865 => --n-features: must be => at most 67108864, not
convert t.csv new.h5 --label label --x-name X => t.csv is csv, and --fill-missing and --x-name are
convert t.csv new.h5 --label label --labels-as 4=2 => no label in t.csv is '4'
convert t.csv new.h5 --label label --labels-as 4=2,*=1 => label in t.csv is '4' => labels are '3'
convert d.txt new.h5 --labels-as=-7=1,-8=1,3=2 => no label in d.txt is '-8', as => '-7', '3'
convert people.csv new.h5 --like people.h5 --labels-as god=1,*=2 => is 'god', as => 'good': correct
convert t.csv new.h5 --label label --labels-as normal. => must be LABEL=NEW
convert t.csv new.h5 --label label --labels-as a=1,a=2 => each label once
convert t.csv new.h5 --label label --labels-as a=NA,*=b => not 'a=NA,*=b'
convert t.csv new.h5 --label label --task regression --labels-as *=1 => for classes
convert d.txt new.h5 --labels-as 3=2 => d.txt => has the label -7 => as -7=NEW
convert cells.h5ad new.h5 --label cell_type => the label of row 200 => --missing-labels drop
convert X.npy X.npy new.h5 --labels y.npy => one file of labels; convert one at a time
convert - new.h5 < empty.txt => standard input holds no rows

split d.h5 new.h5 => required: TEST.h5
split d.h5 new.h5 new2.h5 --test-share 1 => --test-share: must be a positive number, at most 0.99
split d.h5 new.h5 new2.h5 --test-share 0.0001 => leaves one part empty; choose another share
split d.h5 new.h5 new.h5 => would both be new.h5; give two names

info t.csv --label z => lacks column 'z'
info t.csv --label= => --label: must be a name in UTF-8, not ''
info first.csv => holds numbers
info short.csv --label y => short.csv, line 3: it has 2 cells for 3 columns
info zero.txt => --zero-based
info parts => parts does not exist; check the name
verify X.npy => has no checksums to compare with
verify d.txt => is LIBSVM text
verify run.ckpt => run.ckpt

train d.h5 --x-name Z => has no 'Z'
train d.h5 --lmo half => --lmo: must be one of auto, full, sampled
train d.h5 --C nan => --C: must be a positive number, not 'nan'
train d.h5 --memory plenty => --memory: 'plenty' is no size
train d.h5 --memory 10MiB => a limit that would do is
train --stream d.txt --memory 10MiB => a limit that would do is
train d.h5 --max-time soon => --max-time: must be a positive number of seconds, not 'soon'
train d.h5 --class-weight 1 => --class-weight: must be class weights LABEL=W,... or balanced
train d.h5 --class-weight 5=1 => a weight for 5, which is no label
train d.h5 --class-weight 3=0 => the weight of class 3 must be a positive number
train d.h5 --class-weight spam=2 => a weight for spam, which is no label
train d.h5 --checkpoint-every 5s => --checkpoint-every goes with --checkpoint FILE only
train d.h5 -o new.h5 --checkpoint new.h5 => would both be
train d.h5 --resume none.ckpt => there is no model file none.ckpt
train d.h5 --resume d.h5 => it holds data
train d.h5 --labels labels.npy --resume run.ckpt --C 7 --quiet => other options: C 1 (now 7); give
train reversed.h5 --resume run.ckpt --quiet => run.ckpt was made with other data
train d.h5 --landmarks 5 => --landmarks: must be auto, none or a whole number of at least 20
train d.h5 --landmarks 40 --exact => --landmarks 40 and --exact contradict each other
train d.h5 --landmarks 40 --method swap => --landmarks 40 and --method contradict
train d.h5 --landmarks 40 --stopping meb => --landmarks 40 and --stopping contradict
train d.h5 --keep 30 => --keep goes with --stream only
train X.npy --labels y.npy --label y => --label and --labels contradict each other
train d.h5 --x-name \udce9 => --x-name: must be a name in UTF-8, not
train d.h5 --zero-based => --zero-based goes with --stream only
train - => standard input goes with --stream only
train d.h5 --task novelty --probability => --probability has no meaning for --task novelty
train d.h5 --task novelty --class-weight balanced => --class-weight has no meaning
train d.h5 --task novelty --ordinary 8 => no row of d.h5 has the label 8
evaluate m.h5 d.h5 --false-alarms 0 => must be a positive number, such as 0.01 or 1%
train d.h5 --resume m.h5 => m.h5 is the model of a run that is over (converged), not a checkpoint
evaluate m.h5 d.h5 --false-alarms 1% --threshold 1 => not allowed with
evaluate m.h5 d.h5 --save new.h5 => goes with --false-alarms only
evaluate m.h5 d.h5 --ordinary 3 => --ordinary goes with novelty models only
evaluate m.h5 d.h5 --false-alarms 1% --save d.h5 => d.h5
predict m.h5 d.h5 --unassigned 0.9 => gives no probabilities
train d.h5 --contamination 0.1 => --contamination goes with --task novelty
train d.h5 --ordinary 3 => --ordinary goes with --task novelty
train targets.h5 --task regression --method fw => for which method fw has no meaning
train targets.h5 => marked as targets; train with --task regression
train d.txt => ooc-fw convert
train run.ckpt => run.ckpt
train d.h5 --labels d.txt => the labels d.txt must be a .npy file
train d.h5 --labels text.npy => text.npy
train d.h5 --labels matrix.npy => matrix.npy
train d.h5 --labels objects.npy => objects.npy
train d.h5 --labels half.npy => has 200 rows but 1 labels
train X.npy --labels one.npy => rows of two classes
train X.npy --labels rare.npy --probability => the class rare has one only
train cells.h5ad => has no labels; name them (--label) => obs/cell_type
train cells.zarr => has no labels; name them (--label) => obs/cell_type
train cells.h5ad --label cell_type => the label of row 200 of => --missing-labels drop
train cells.h5ad --label batch --x-name layers/none => layers/none => --x-name
train cells.h5ad --label batch --x-name log => has no 'log' => layers/log
train cells.zarr --label type => has no 'type'; it has => obs/batch, obs/cell_type, obs/donor

train --stream - => - is no file here, so the output has no default name; give -o
train --stream d.txt -o d.txt => would replace the input
train --stream d.txt --labels y.npy => --labels has no part in --stream of LIBSVM text
train --stream d.txt --x-name Z => --x-name has no part in
train --stream d.txt --stopping meb --kernel poly => meb
train --stream d.txt --method fw => --method has no part in
train --stream d.txt --probability => --probability has no part in
train --stream d.txt --dask threads => --dask has no part in
train --stream nowhere => nowhere does not exist
train --stream run.ckpt -o new.h5 => run.ckpt
train --stream - -o new.h5 < empty.txt => standard input holds no rows
train --stream - -o new.h5 < one-class.txt => all rows of standard input have the label 1
train --stream - -o new.h5 < nan.txt => standard input, line 2 => not a finite number
train --stream - -o new.h5 < equal.txt => all rows of standard input are equal => gamma
train --stream - -o new.h5 < zero.txt => standard input, line 1 => --zero-based
train --stream people.csv --resume people.model.h5 -o new.h5 --C 7 => --C cannot change
train --stream people.csv --resume people.model.h5 -o new.h5 --gamma 1 => --gamma cannot change
train --stream no-age.csv --resume people.model.h5 -o new.h5 => lacks column 'age'
train --stream no-kind.csv --resume people.model.h5 -o new.h5 => no column 'kind' => --label
train --stream fair-kind.csv --resume people.model.h5 -o new.h5 => row 1 of => label fair
train --stream d.h5 --resume marks.h5 -o new.h5 --keep 30 => --keep is for models with support
train --stream d.h5 --resume plain.h5 -o new.h5 --landmarks 30 => plain.h5 is exact and has no
train --stream d.h5 --resume novel.h5 -o new.h5 => novelty => train on all rows
train --stream d.h5 --resume numbers.h5 -o new.h5 => regression => train on all rows
train --stream d.h5 --resume weighted.h5 -o new.h5 => has weights of rows
train --stream d.h5 --resume d.h5 -o new.h5 => holds data

tune d.h5 --metric f1 => accuracy or balanced_accuracy or auc
tune d.h5 --C 0,1 => --C: must be a positive number, not '0'
tune targets.h5 => marked as targets; train with --task regression

train d.h5 -o t.csv => t.csv exists, and this command writes no such files
train d.h5 --log m.h5 => m.h5 exists
train d.h5 --checkpoint m.h5 => m.h5 exists
tune d.h5 -o run.log => run.log exists
export m.h5 t.csv => t.csv exists
predict m.h5 X.npy -o t.csv => t.csv exists
predict m.h5 X.npy -o d.txt => d.txt exists
evaluate m.h5 d.h5 --figure drawing.svg => drawing.svg exists
importance m.h5 d.h5 --figure drawing.svg => drawing.svg exists
plot run.log -o drawing.svg => drawing.svg exists
predict m.h5 d.h5 --json => --json needs -o FILE
predict m.h5 d.h5 -o p.h5 => p.h5: predictions are text; give -o FILE.csv
predict m.h5 d.h5 --probability -o new.csv => ooc-fw train --probability
predict m.h5 d.h5 --threshold=nan => --threshold
predict three.h5 d.h5 --threshold=1 => --threshold is for two classes => three.h5
predict m.h5 maxabs.h5 => maxabs.h5 is scaled (maxabs) in another way than the model's
predict m.h5 wide.npy => wide.npy has 9 features but the model was trained on 4
predict m.h5 empty.txt => empty.txt
predict m.h5 t.csv => ooc-fw convert t.csv t.h5 --like TRAIN.h5
predict m.h5 m.h5 => m.h5 has no 'X'
predict m.h5 d.txt --dask threads => --dask is not for tables and text such as d.txt
predict cut.h5 d.h5 => cut.h5
predict m.h5 d.txt --x-name Z => --x-name has no meaning for d.txt; leave it out
predict m.h5 d.txt --names a,b => --names has no meaning for d.txt; leave it out
predict m.h5 d.h5 --names a,b => --names has no meaning for d.h5; leave it out
evaluate m.h5 d.h5 --zero-based => --zero-based has no meaning for d.h5; leave it out
evaluate people.model.h5 people.csv --zero-based => --zero-based has no meaning for people.csv
predict m.h5 d.h5 -o p.H5AD => p.H5AD: predictions are text; give -o FILE.csv
predict people.model.h5 first.csv => holds numbers => convert with --no-header if it is a row
predict d.txt d.h5 => d.txt
predict d.h5 d.h5 => ooc-fw train
predict lines.h5 d.h5 => line breaks => give -o FILE.csv
predict people.model.h5 no-age.csv => no-age.csv lacks column 'age', which people.model.h5 needs
predict people.model.h5 word.csv => word.csv, line 2: column 'age' does not hold a number but 'old'
predict people.model.h5 huge.csv => column 'age' is 1e+300: beyond float32 (3.4e38); correct
predict people.model.h5 header.csv => header.csv has no rows; give a table with rows in it
predict people.model.h5 d.txt => add or rename what is missing
predict people.model.h5 people.csv --dask threads => --dask is not for tables

evaluate m.h5 d.h5 --positive attack => --positive attack: m.h5 knows -7 and 3
evaluate m.h5 X.npy => X.npy has no labels
evaluate m.h5 X.npy --labels none.npy => no row of X.npy has a label
evaluate numbers.h5 large.npy --labels amounts.npy => large.npy has rows without a prediction
evaluate m.h5 X.npy --labels words.npy => a class of the model (known: -7, 3; found: 'no', 'yes')
evaluate m.h5 other.txt => no label in => (known: -7, 3; found: 5) => --label
evaluate m.h5 d.h5 --figure new.gif => has to end in .png, .svg or .pdf, not new.gif
evaluate novel.h5 d.h5 --labels words.npy => 1; found: 'no', 'yes'); name the label of ordinary rows
evaluate numbers.h5 d.h5 --labels words.npy => predicts numbers, but the labels of d.h5 are words
evaluate people.model.h5 no-kind.csv => has no column 'kind' => --label
evaluate m.h5 d.txt --label z => --label has no meaning for d.txt
evaluate m.h5 d.txt --labels y.npy => --labels has no meaning for d.txt
importance m.h5 t.csv => convert it like the training data => --like TRAIN.h5
certify m.h5 t.csv => --like TRAIN.h5
evaluate people.model.h5 people.csv --labels y.npy => has its labels in a column
certify m.h5 d.h5 --tol x => --tol: must be a positive number, not 'x'
certify m.h5 t.csv => t.csv is a table
certify m.h5 reversed.h5 => reversed.h5 => give the file it was trained on
certify marks.h5 reversed.h5 => the file it was trained on
certify m.h5 d.h5 --labels words.npy => has labels no, yes but the model was trained on -7, 3
importance m.h5 d.txt => ooc-fw convert
plot d.h5 -o new.png => it has no events of a training run
plot run.log --panels gap,size => --panels knows work, gap, support
"""

FLAG = r"(?<![\w-])--[a-z][a-z0-9-]*"


def flags_of(command):
    parser = build_parser()._subparsers._group_actions[0].choices[command]
    return {flag for action in parser._actions for flag in action.option_strings}


@pytest.mark.parametrize("case", [line for line in CASES.splitlines() if line])
def test_one_sentence_and_nothing_written(ooc_fw, files, monkeypatch, case):
    monkeypatch.chdir(files)
    before = {path.name: path.stat().st_mtime_ns for path in files.iterdir()}
    command, *words = case.split(" => ")
    command, _, stdin = command.partition(" < ")
    with open(stdin or "empty.txt") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        outcome = ooc_fw(*command.split())
    outcome.assert_refused(*words)
    # The options in the sentence are those of the command, or of another one that it names.
    asked = set(re.findall(FLAG, outcome.err)) - set(re.findall(FLAG, command))
    named = [name for name in COMMANDS if re.search(rf"\b{name}\b", f"{command} {outcome.err}")]
    assert asked <= {flag for name in named for flag in flags_of(name)}
    assert {path.name: path.stat().st_mtime_ns for path in files.iterdir()} == before
