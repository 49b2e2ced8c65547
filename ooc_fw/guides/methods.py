"""Four methods on one problem: the gap of each against time and iterations, in one figure.

    python -m ooc_fw.guides.methods [ROWS.txt]

The file is LIBSVM text of two classes. Without one it is a1a, 1,605 rows of the UCI Adult set,
which comes with the package. Results go to the current folder.
"""

import shlex
import sys
from importlib.resources import files

from ooc_fw.cli.guide import run_commands

path = sys.argv[1] if sys.argv[1:] else str(files("ooc_fw.data") / "samples" / "a1a.xz")
train = "train rows.h5 --exact --C 1 --tol 1e-2 --max-time 60s"
commands = f"""
convert {shlex.quote(path)} rows.h5
{train} --lmo full --method fw -o fw.h5 --log fw.jsonl
{train} --lmo full --method partan -o partan.h5 --log partan.jsonl
{train} --lmo full --method swap2 -o swap2.h5 --log swap2.jsonl
{train} --method corrective -o corrective.h5 --log corrective.jsonl
plot fw.jsonl partan.jsonl swap2.jsonl corrective.jsonl --panels gap -o methods.svg
"""
sys.exit(run_commands(commands))
